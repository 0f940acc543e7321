//! The modes: which one can be used here, what each needs of the kernel, and how its backend is opened.

use std::sync::Arc;
use std::time::Duration;

use api::config::proxy::{KubeProxyConfiguration, Mode};
use proxy_core::ipvs::DEFAULT_SCHEDULER;
use proxy_core::objects::{Cidr, Family};
use sys::ipvs::{Ipvs, Timeouts};

use crate::backend::iptables::{IptablesDataplane, Programs};
use crate::backend::ipvs::{self, IpvsDataplane};
use crate::backend::nft::NftDataplane;
use crate::error::Error;
use crate::host;
use crate::metrics::Metrics;
use crate::ports::Dataplane;
use crate::settings::{duration, settings};
use crate::sysctl::{self, Sysctls};

/// Comparing everything with the kernel, where we would hear of changes, and where we would not.
const SLOW_LOOK: Duration = Duration::from_secs(300);
const HOURLY: Duration = Duration::from_secs(3600);

/// Before this, upstream does not trust nf_tables.
const NFTABLES_KERNEL: (u32, u32) = (5, 13);

/// What upstream says, in its log and as an event.
pub(crate) const IPVS_DEPRECATION: &str = "The ipvs proxier is now deprecated and may be removed in a future release. Please use 'nftables' instead.";

/// The mode asked for, or the best this kernel has; with the words to tell if it is not the usual one.
/// `any_kernel` is for kernels that are better than their number says.
pub fn choose(config: &KubeProxyConfiguration, any_kernel: bool) -> Result<(Mode, Option<String>), Error> {
    let only = |mode: Mode, usable: Result<(), String>| match usable {
        Ok(()) => Ok((mode, None)),
        Err(why) => Err(Error::Mode { mode: mode.name(), why }),
    };
    match config.mode() {
        Some(Mode::Nftables) => only(Mode::Nftables, nftables(any_kernel)),
        Some(Mode::Iptables) => only(Mode::Iptables, iptables()),
        Some(Mode::Ipvs) => {
            let kernel = || ipvs::check(scheduler(config)).map_err(|e| e.to_string());
            only(Mode::Ipvs, iptables().and_then(|()| kernel()))
        }
        None => match nftables(any_kernel) {
            Ok(()) => Ok((Mode::Nftables, None)),
            Err(why) => {
                let told = format!("nftables cannot be used ({why}), using iptables");
                only(Mode::Iptables, iptables()).map(|(mode, _)| (mode, Some(told)))
            }
        },
    }
}

fn nftables(any_kernel: bool) -> Result<(), String> {
    if !any_kernel {
        is_new_enough(sysctl::kernel_version())?;
    }
    NftDataplane::open(Family::V4, 0).and_then(|mut plane| plane.try_out()).map_err(|e| e.to_string())
}

/// In upstream's words.
fn is_new_enough(kernel: (u32, u32)) -> Result<(), String> {
    let (major, minor) = NFTABLES_KERNEL;
    match kernel >= NFTABLES_KERNEL {
        true => Ok(()),
        false => Err(format!("kube-proxy in nftables mode requires kernel {major}.{minor} or later")),
    }
}

fn iptables() -> Result<(), String> {
    match Family::BOTH.into_iter().any(|family| Programs::new(family).is_usable()) {
        true => Ok(()),
        false => Err("neither iptables nor ip6tables works here".to_owned()),
    }
}

/// What needs full rights and happens once.
pub fn initialise(config: &KubeProxyConfiguration, chosen: Mode) -> Result<(), Error> {
    let sysctls = Sysctls::default();
    sysctls.set_conntrack(&config.conntrack, host::processors())?;
    match chosen {
        Mode::Nftables => {}
        Mode::Iptables => {
            if settings(config, chosen).serves_loopback() {
                sysctls.set("net/ipv4/conf/all/route_localnet", 1)?;
            }
        }
        Mode::Ipvs => {
            let kernel = sysctl::kernel_version();
            for (name, value) in sysctl::ipvs(config.ipvs.strict_arp, kernel) {
                sysctls.set(name, value)?;
            }
            set_timeouts(config);
        }
    }
    Ok(())
}

/// As upstream, a timeout that cannot be set is told and no reason to stop.
fn set_timeouts(config: &KubeProxyConfiguration) {
    let seconds = |value| u32::try_from(duration(value).as_secs()).unwrap_or(u32::MAX);
    let timeouts = Timeouts {
        tcp: seconds(config.ipvs.tcp_timeout),
        tcp_fin: seconds(config.ipvs.tcp_fin_timeout),
        udp: seconds(config.ipvs.udp_timeout),
    };
    if timeouts != Timeouts::default()
        && let Err(error) = Ipvs::open().and_then(|mut ipvs| ipvs.set_timeouts(timeouts))
    {
        tracing::error!(%error, "the timeouts of IPVS stay as they are");
    }
}

/// How often everything is compared with the kernel when nothing seems wrong.
pub(crate) fn look_period(config: &KubeProxyConfiguration, chosen: Mode) -> Duration {
    match chosen {
        Mode::Nftables => SLOW_LOOK,
        Mode::Iptables => HOURLY,
        // Real servers that wait for their last connection to end are looked at then.
        Mode::Ipvs => duration(config.ipvs.sync_period),
    }
}

/// The backend of a family; `None` where the family cannot be served and the other one can.
pub(crate) fn open(
    config: &KubeProxyConfiguration,
    chosen: Mode,
    family: Family,
    metrics: &Arc<Metrics>,
) -> Result<Option<Box<dyn Dataplane>>, Error> {
    let mark = config.masquerade_mark(chosen);
    let refuse = |error: crate::ports::Error| Error::Mode { mode: chosen.name(), why: error.to_string() };
    if chosen == Mode::Nftables {
        let bit = u8::try_from(mark.trailing_zeros()).unwrap_or(0);
        return Ok(Some(Box::new(NftDataplane::open(family, bit).map_err(refuse)?)));
    }
    let programs = Programs::new(family);
    if !programs.is_usable() {
        let family = family.name();
        tracing::warn!(family, "iptables does not work in this family, serving the other alone");
        return Ok(None);
    }
    if chosen == Mode::Ipvs {
        let excluded = config.ipvs.exclude_cidrs.iter().filter_map(|text| Cidr::parse(text)).collect();
        let plane = IpvsDataplane::open(programs, mark, scheduler(config), excluded).map_err(refuse)?;
        return Ok(Some(Box::new(plane)));
    }
    let be_liberal =
        Sysctls::default().get("net/netfilter/nf_conntrack_tcp_be_liberal").is_some_and(|v| v != 0);
    let period = duration(config.periods(chosen).0);
    Ok(Some(Box::new(IptablesDataplane::open(programs, mark, be_liberal, period, metrics.clone()))))
}

fn scheduler(config: &KubeProxyConfiguration) -> &str {
    match config.ipvs.scheduler.as_str() {
        "" => DEFAULT_SCHEDULER,
        scheduler => scheduler,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_kernels_are_refused() {
        let rows = [((4, 19), false), ((5, 12), false), ((5, 13), true), ((5, 15), true), ((6, 1), true)];
        for (kernel, is_enough) in rows {
            let said = is_new_enough(kernel);
            assert_eq!(said.is_ok(), is_enough, "{kernel:?}");
            if let Err(why) = said {
                assert_eq!(why, "kube-proxy in nftables mode requires kernel 5.13 or later");
            }
        }
    }
}
