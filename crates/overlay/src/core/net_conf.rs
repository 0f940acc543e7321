//! `net-conf.json`, as flannel reads it: keys in any case, what is left out has flannel's default.

use ipnet::IpNet;
use serde_json::{Map, Value};

use super::{Both, Family};

/// What the cluster has of networks, and how its nodes reach each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetConf {
    /// All Pods are in these; of the families that are switched on.
    pub networks: Both<IpNet>,
    pub backend: Backend,
    /// Of the packets that leave the machine, where it is not the device's.
    pub mtu: Option<u32>,
    /// What was said and does not act.
    pub ignored: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Packets travel in UDP packets between the nodes.
    Vxlan(Vxlan),
    /// The nodes are next to each other: a route is enough.
    HostGw,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vxlan {
    pub vni: u32,
    pub port: u16,
    pub has_policy: bool,
    pub learns: bool,
    /// A route where the node is next to this one, a tunnel elsewhere.
    pub is_direct: bool,
}

/// Flannel's, which is older than the port that was given to VXLAN.
const PORT: u16 = 8472;
/// IPv6 does not go below.
const LEAST_MTU: u64 = 1280;
const MOST_MTU: u64 = 65_535;

// === impl NetConf ===

impl NetConf {
    /// Names the first field that is wrong.
    pub fn parse(text: &str) -> Result<NetConf, String> {
        let value: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let Value::Object(all) = value else { return Err("it is no JSON object".to_owned()) };
        let top = Fields::new("", &all)?;
        let mut networks = Both::default();
        for (family, switch, key) in [
            (Family::V4, top.flag("EnableIPv4")?.unwrap_or(true), "Network"),
            (Family::V6, top.flag("EnableIPv6")?.unwrap_or(false), "IPv6Network"),
        ] {
            if switch {
                networks.set(family, Some(top.network(key, family)?));
            }
        }
        if networks == Both::default() {
            return Err("EnableIPv4 and EnableIPv6: both are off".to_owned());
        }
        let mut ignored = top.others(&[
            "enableipv4",
            "enableipv6",
            "network",
            "ipv6network",
            "backend",
            // The API server gives the subnets, and rules are always in nf_tables.
            "subnetlen",
            "subnetmin",
            "subnetmax",
            "ipv6subnetlen",
            "ipv6subnetmin",
            "ipv6subnetmax",
            "enablenftables",
        ]);
        let Some(backend) = top.get("Backend") else {
            return Err("Backend: not given, which means \"udp\": use vxlan or host-gw".to_owned());
        };
        let Value::Object(backend) = backend else { return Err("Backend: is no object".to_owned()) };
        let backend = Fields::new("Backend.", backend)?;
        let mtu = backend.number("MTU", MOST_MTU)?.filter(|mtu| *mtu > 0);
        if let Some(mtu) = mtu.filter(|mtu| *mtu < LEAST_MTU) {
            return Err(format!("Backend.MTU: {mtu} is less than {LEAST_MTU}"));
        }
        let mtu = mtu.and_then(|mtu| u32::try_from(mtu).ok());
        let kind = backend.text("Type")?.unwrap_or_default();
        let backend = match kind.as_str() {
            "vxlan" => {
                let known = ["type", "vni", "port", "gbp", "learning", "directrouting", "mtu"];
                ignored.extend(backend.others(&known));
                Backend::Vxlan(backend.vxlan()?)
            }
            "host-gw" => {
                ignored.extend(backend.others(&["type"]));
                Backend::HostGw
            }
            "" => return Err("Backend.Type: not given: use vxlan or host-gw".to_owned()),
            other => {
                return Err(format!(
                    "Backend.Type: {other:?} is not one of those that are there: vxlan, host-gw"
                ));
            }
        };
        Ok(NetConf { networks, backend, mtu, ignored })
    }

    /// What a tunnel takes of the packets of one family.
    #[must_use]
    pub fn overhead(&self, family: Family) -> u32 {
        match (self.backend, family) {
            (Backend::HostGw, _) => 0,
            (Backend::Vxlan(_), Family::V4) => 50,
            (Backend::Vxlan(_), Family::V6) => 70,
        }
    }
}

// === impl Backend ===

impl Backend {
    /// What Nodes say of it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Backend::Vxlan(_) => "vxlan",
            Backend::HostGw => "host-gw",
        }
    }

    /// The device of a family's tunnels.
    #[must_use]
    pub fn device(self, family: Family) -> Option<String> {
        match (self, family) {
            (Backend::Vxlan(vxlan), Family::V4) => Some(format!("flannel.{}", vxlan.vni)),
            (Backend::Vxlan(vxlan), Family::V6) => Some(format!("flannel-v6.{}", vxlan.vni)),
            (Backend::HostGw, _) => None,
        }
    }
}

/// The fields of an object, as Go finds them.
struct Fields<'a> {
    within: &'static str,
    fields: Vec<(String, &'a Value)>,
}

// === impl Fields ===

impl<'a> Fields<'a> {
    fn new(within: &'static str, object: &'a Map<String, Value>) -> Result<Fields<'a>, String> {
        let mut fields: Vec<(String, &Value)> = Vec::new();
        for (key, value) in object.iter().filter(|(_, value)| !value.is_null()) {
            let key = key.to_lowercase();
            if fields.iter().any(|(known, _)| *known == key) {
                return Err(format!("{within}{key}: is there twice"));
            }
            fields.push((key, value));
        }
        Ok(Fields { within, fields })
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        let key = key.to_lowercase();
        self.fields.iter().find(|(known, _)| *known == key).map(|(_, value)| *value)
    }

    fn others(&self, known: &[&str]) -> Vec<String> {
        let others = self.fields.iter().filter(|(key, _)| !known.contains(&key.as_str()));
        others.map(|(key, _)| format!("{}{key}", self.within)).collect()
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, String> {
        let wrong = |value: &Value| format!("{}{key}: {value} is neither true nor false", self.within);
        self.get(key).map(|value| value.as_bool().ok_or_else(|| wrong(value))).transpose()
    }

    fn text(&self, key: &str) -> Result<Option<String>, String> {
        let wrong = |value: &Value| format!("{}{key}: {value} is no text", self.within);
        self.get(key).map(|value| value.as_str().map(str::to_owned).ok_or_else(|| wrong(value))).transpose()
    }

    fn number(&self, key: &str, most: u64) -> Result<Option<u64>, String> {
        let wrong = |value: &Value| format!("{}{key}: {value} is no number up to {most}", self.within);
        let read = |value: &Value| value.as_u64().filter(|n| *n <= most).ok_or_else(|| wrong(value));
        self.get(key).map(read).transpose()
    }

    fn network(&self, key: &str, family: Family) -> Result<IpNet, String> {
        let Some(text) = self.text(key)? else {
            return Err(format!("{key}: not given, and {} is switched on", family.name()));
        };
        let net: IpNet = text.parse().map_err(|_| format!("{key}: {text:?} is no network"))?;
        match Family::of_net(net) == family {
            true => Ok(net.trunc()),
            false => Err(format!("{key}: {text:?} is no {} network", family.name())),
        }
    }

    fn vxlan(&self) -> Result<Vxlan, String> {
        let small = |key, most, default| {
            self.number(key, most).map(|found| found.filter(|n| *n > 0).unwrap_or(default))
        };
        Ok(Vxlan {
            vni: u32::try_from(small("VNI", 0xff_ffff, 1)?).unwrap_or(1),
            port: u16::try_from(small("Port", 0xffff, u64::from(PORT))?).unwrap_or(PORT),
            has_policy: self.flag("GBP")?.unwrap_or(false),
            learns: self.flag("Learning")?.unwrap_or(false),
            is_direct: self.flag("DirectRouting")?.unwrap_or(false),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_flannel_reads_is_read() {
        let conf = NetConf::parse(r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}"#).unwrap();
        let vxlan = Vxlan { vni: 1, port: 8472, has_policy: false, learns: false, is_direct: false };
        assert_eq!(conf.backend, Backend::Vxlan(vxlan));
        assert_eq!((conf.networks.v4.unwrap().to_string(), conf.networks.v6), ("10.244.0.0/16".into(), None));
        assert_eq!(conf.backend.device(Family::V4).unwrap(), "flannel.1");
        let text = r#"{"network": "10.1.2.3/16", "EnableIPv6": true, "IPv6Network": "fd00::/48", "SubnetLen": 24,
                       "EnableNFTables": true, "backend": {"Type": "vxlan", "vni": 9, "Port": 4789, "GBP": true,
                       "DirectRouting": true, "MTU": 1400, "MacPrefix": "0E-2A"}}"#;
        let conf = NetConf::parse(text).unwrap();
        let vxlan = Vxlan { vni: 9, port: 4789, has_policy: true, learns: false, is_direct: true };
        assert_eq!((conf.backend, conf.mtu), (Backend::Vxlan(vxlan), Some(1400)));
        assert_eq!(conf.networks.v4.unwrap().to_string(), "10.1.0.0/16");
        assert_eq!(conf.ignored, ["Backend.macprefix"]);
        assert_eq!((conf.overhead(Family::V4), conf.overhead(Family::V6)), (50, 70));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, want) in [
            ("[]", "it is no JSON object"),
            (r#"{"Backend": {"Type": "vxlan"}}"#, "Network: not given, and IPv4 is switched on"),
            (r#"{"Network": "fd00::/48"}"#, "Network: \"fd00::/48\" is no IPv4 network"),
            (r#"{"Network": "10.0.0.0"}"#, "Network: \"10.0.0.0\" is no network"),
            (r#"{"EnableIPv4": false}"#, "EnableIPv4 and EnableIPv6: both are off"),
            (r#"{"EnableIPv4": "no"}"#, "EnableIPv4: \"no\" is neither true nor false"),
            (r#"{"Network": "10.0.0.0/8"}"#, "Backend: not given, which means \"udp\": use vxlan or host-gw"),
            (
                r#"{"Network": "10.0.0.0/8", "Backend": {"Type": "wireguard"}}"#,
                "Backend.Type: \"wireguard\" is not one of those that are there: vxlan, host-gw",
            ),
            (
                r#"{"Network": "10.0.0.0/8", "Backend": {"Type": "vxlan", "VNI": 99999999}}"#,
                "Backend.VNI: 99999999 is no number up to 16777215",
            ),
            (
                r#"{"Network": "10.0.0.0/8", "Backend": {"Type": "vxlan", "MTU": 576}}"#,
                "Backend.MTU: 576 is less than 1280",
            ),
            (r#"{"Network": "10.0.0.0/8", "network": "10.0.0.0/8"}"#, "network: is there twice"),
        ] {
            assert_eq!(NetConf::parse(text).unwrap_err(), want, "{text}");
        }
    }
}
