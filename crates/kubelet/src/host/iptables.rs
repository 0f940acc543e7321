//! Chains of iptables that are there for others (`makeIPTablesUtilChains`): a hint which iptables this machine uses, and the
//! rule that keeps packets of the network away from services on the loopback addresses. The kubelet needs neither; where
//! there is no iptables, nobody else does.

use std::ffi::OsStr;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio_util::sync::CancellationToken;

const HINT: &str = "KUBE-IPTABLES-HINT";
const FIREWALL: &str = "KUBE-FIREWALL";
/// An empty chain; when it is gone, somebody flushed everything.
const CANARY: &str = "KUBE-KUBELET-CANARY";
const TABLES: [&str; 3] = ["mangle", "nat", "filter"];
/// kube-proxy has the same rule, to the letter.
const MARTIANS: [&str; 16] = [
    "-m",
    "comment",
    "--comment",
    "block incoming localnet connections",
    "--dst",
    "127.0.0.0/8",
    "!",
    "--src",
    "127.0.0.0/8",
    "-m",
    "conntrack",
    "!",
    "--ctstate",
    "RELATED,ESTABLISHED,DNAT",
    "-j",
    "DROP",
];

/// How often the canary is looked at.
const PERIOD: Duration = Duration::from_secs(60);
/// A flush takes its time; the other tables are looked at this often, and not longer than that.
const FLUSH_POLL: Duration = Duration::from_millis(100);
const FLUSH_POLLS: u32 = 50;
/// One command, with the wait for the lock that all of them share.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A command that did not do what it should.
#[derive(Debug, thiserror::Error)]
#[error("{command}: {why}")]
struct Failed {
    command: String,
    why: String,
    /// None if it did not run to its end.
    code: Option<i32>,
}

/// iptables of one family.
#[derive(Clone, Debug)]
struct Family {
    program: String,
    is_ipv6: bool,
}

/// Makes the chains and restores them after a flush, until cancelled.
pub(crate) async fn keep(token: CancellationToken) {
    let families = [("iptables", false), ("ip6tables", true)];
    let families = families.map(|(program, is_ipv6)| Family { program: program.to_owned(), is_ipv6 });
    let [v4, v6] = &families;
    let (has_v4, has_v6) = tokio::join!(v4.is_present(), v6.is_present());
    if !has_v4 && !has_v6 {
        tracing::info!("No iptables support on this system; not creating the KUBE-IPTABLES-HINT chain");
        return token.cancelled().await;
    }
    let v4 = async {
        if has_v4 {
            v4.keep().await
        }
    };
    let v6 = async {
        if has_v6 {
            v6.keep().await
        }
    };
    let _ = token.run_until_cancelled(async { tokio::join!(v4, v6) }).await;
    token.cancelled().await;
}

// === impl Family ===

impl Family {
    async fn is_present(&self) -> bool {
        self.run("-S", "nat", "POSTROUTING", &[]).await.is_ok()
    }

    /// Ends only if the chains cannot be made at first.
    async fn keep(&self) {
        if let Err(error) = self.make().await {
            let protocol = if self.is_ipv6 { "IPv6" } else { "IPv4" };
            return tracing::warn!(protocol, %error, "iptables rules not made; some functionality may be missing");
        }
        loop {
            while let Err(error) = self.make_canaries().await {
                tracing::warn!(%error, "iptables canary not made");
                tokio::time::sleep(PERIOD).await;
            }
            self.wait_for_a_flush().await;
            tracing::info!(program = self.program, "iptables were flushed; the chains are made again");
            if let Err(error) = self.make().await {
                tracing::warn!(%error, "iptables rules not made again");
            }
        }
    }

    async fn make(&self) -> Result<(), Failed> {
        self.make_chain("mangle", HINT).await?;
        // Only IPv4 lets loopback addresses be routed.
        if self.is_ipv6 {
            return Ok(());
        }
        self.make_chain("filter", FIREWALL).await?;
        for chain in ["OUTPUT", "INPUT"] {
            self.make_rule("-I", chain, &["-j", FIREWALL]).await?;
        }
        self.make_rule("-A", FIREWALL, &MARTIANS).await
    }

    async fn make_canaries(&self) -> Result<(), Failed> {
        for table in TABLES {
            self.make_chain(table, CANARY).await?;
        }
        Ok(())
    }

    async fn wait_for_a_flush(&self) {
        let [first, others @ ..] = TABLES;
        loop {
            tokio::time::sleep(PERIOD).await;
            if !self.has_canary(first).await {
                break;
            }
        }
        for _ in 0..FLUSH_POLLS {
            let [second, third] = others;
            if !self.has_canary(second).await && !self.has_canary(third).await {
                return;
            }
            tokio::time::sleep(FLUSH_POLL).await;
        }
    }

    /// A kernel that had no room for the answer says nothing about the chain.
    async fn has_canary(&self, table: &str) -> bool {
        match self.run("-S", table, CANARY, &[]).await {
            Ok(()) => true,
            Err(failed) => failed.code.is_none_or(|code| code == 4),
        }
    }

    async fn make_chain(&self, table: &str, chain: &str) -> Result<(), Failed> {
        match self.run("-N", table, chain, &[]).await {
            // It is there already.
            Err(failed) if failed.code == Some(1) => Ok(()),
            other => other,
        }
    }

    async fn make_rule(&self, how: &str, chain: &str, rule: &[&str]) -> Result<(), Failed> {
        match self.run("-C", "filter", chain, rule).await {
            Err(failed) if failed.code == Some(1) => self.run(how, "filter", chain, rule).await,
            other => other,
        }
    }

    async fn run(&self, what: &str, table: &str, chain: &str, rule: &[&str]) -> Result<(), Failed> {
        let mut args = vec!["-w", "5", what, chain, "-t", table];
        args.extend(rule);
        let failed =
            |why: String, code| Failed { command: format!("{} {}", self.program, args.join(" ")), why, code };
        let mut command = Command::new(OsStr::new(&self.program));
        command.args(&args).stdin(Stdio::null()).kill_on_drop(true);
        let ended = match tokio::time::timeout(TIMEOUT, command.output()).await {
            Ok(Ok(ended)) => ended,
            Ok(Err(e)) => return Err(failed(e.to_string(), None)),
            Err(_) => return Err(failed(format!("no end within {} s", TIMEOUT.as_secs()), None)),
        };
        if ended.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&ended.stderr);
        Err(failed(said.trim_end().to_owned(), ended.status.code()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::path::Path;

    /// A network namespace with the real programs in it, where they are at hand.
    fn in_a_namespace<T: Send>(flavour: &str, work: impl AsyncFnOnce(&Path) -> T + Send) -> Option<T> {
        let programs = fixture::Tools::iptables_from_env(flavour)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Some(fixture::Netns::new().unwrap().within(|| runtime.block_on(work(&programs))))
    }

    fn family(programs: &Path, program: &str) -> Family {
        let program = programs.join(program).display().to_string();
        Family { is_ipv6: program.contains("ip6tables"), program }
    }

    async fn rules(family: &Family, table: &str) -> Vec<String> {
        let listed = Command::new(&family.program).args(["-t", table, "-S"]).output().await.unwrap();
        String::from_utf8(listed.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    async fn chains_are_made(programs: &Path) {
        let v4 = family(programs, "iptables");
        v4.run("-A", "filter", "INPUT", &["-j", "ACCEPT"]).await.unwrap();
        for _ in 0..2 {
            v4.make().await.unwrap();
            v4.make_canaries().await.unwrap();
        }
        let filter = rules(&v4, "filter").await;
        let of = |chain: &str| {
            filter.iter().filter(|r| r.starts_with(&format!("-A {chain} "))).collect::<Vec<_>>()
        };
        assert_eq!(
            of("INPUT"),
            ["-A INPUT -j KUBE-FIREWALL", "-A INPUT -j ACCEPT"],
            "before what others have"
        );
        assert_eq!(of("OUTPUT"), ["-A OUTPUT -j KUBE-FIREWALL"]);
        assert_eq!(of(FIREWALL).len(), 1, "{filter:?}");
        assert!(of(FIREWALL)[0].contains("! -s 127.0.0.0/8 -d 127.0.0.0/8"), "{filter:?}");
        assert!(rules(&v4, "mangle").await.contains(&format!("-N {HINT}")));
        assert!(v4.has_canary("nat").await);
        v4.run("-X", "nat", CANARY, &[]).await.unwrap();
        assert!(!v4.has_canary("nat").await);
        // Loopback addresses of IPv6 are never routed, and need no guard.
        let v6 = family(programs, "ip6tables");
        v6.make().await.unwrap();
        assert!(rules(&v6, "mangle").await.contains(&format!("-N {HINT}")));
        assert!(!rules(&v6, "filter").await.contains(&format!("-N {FIREWALL}")));
    }

    #[test]
    fn chains_are_made_once_and_before_what_others_have() {
        for flavour in ["nft", "legacy"] {
            in_a_namespace(flavour, chains_are_made);
        }
    }

    #[tokio::test]
    async fn a_machine_without_iptables_has_none() {
        let none = Family { program: "/nowhere/iptables".to_owned(), is_ipv6: false };
        assert!(!none.is_present().await);
        assert!(none.has_canary("nat").await, "what cannot be asked is not taken for flushed");
        assert!(none.make().await.unwrap_err().to_string().starts_with("/nowhere/iptables -w 5 -N"));
    }
}
