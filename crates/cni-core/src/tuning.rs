//! `tuning`: parameters of a namespace and of a device in it.

use serde_json::{Map, Value, json};

use crate::error::{CniError, Code};
use crate::fields::Fields;
use crate::mac::Mac;
use crate::request::Request;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Names with slashes.
    pub sysctls: Vec<(String, String)>,
    pub change: Change,
    pub data_dir: Option<String>,
}

/// Of a device; what is `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub mac: Option<Mac>,
    pub is_promiscuous: Option<bool>,
    pub mtu: Option<u32>,
    pub is_all_multicast: Option<bool>,
    pub queue_length: Option<u32>,
}

// === impl Tuning ===

impl Tuning {
    pub fn read(request: &Request) -> Result<Self, CniError> {
        let fields = request.fields();
        let mut tuning = Tuning::default();
        tuning.sysctls_of(&fields, &request.attachment.interface)?;
        tuning.change.merge(&fields)?;
        // Promiscuity is only ever asked for; false is the same as nothing.
        tuning.change.is_promiscuous = tuning.change.is_promiscuous.filter(|is| *is);
        if let Some(text) = request.argument("MAC") {
            let why = || {
                CniError::new(Code::Environment, format!("CNI_ARGS MAC: {text:?} is not a hardware address"))
            };
            tuning.change.mac = Some(text.parse().map_err(|()| why())?);
        }
        if let Some(runtime) = request.runtime()? {
            tuning.change.mac = runtime.mac("mac")?.or(tuning.change.mac);
        }
        if let Some(asked) = request.conventional()? {
            tuning.sysctls_of(&asked, &request.attachment.interface)?;
            tuning.change.merge(&asked)?;
        }
        tuning.data_dir = fields.text("dataDir")?.filter(|dir| !dir.is_empty()).map(str::to_owned);
        Ok(tuning)
    }

    fn sysctls_of(&mut self, fields: &Fields<'_>, interface: &str) -> Result<(), CniError> {
        let Some(sysctls) = fields.fields("sysctl")? else { return Ok(()) };
        for key in sysctls.map().keys() {
            let value = sysctls.text(key)?.unwrap_or_default();
            let name = sysctl_name(key, interface).map_err(|why| CniError::field(&sysctls.path(key), why))?;
            self.sysctls.retain(|(other, _)| *other != name);
            self.sysctls.push((name, value.to_owned()));
        }
        Ok(())
    }
}

/// Under `/proc/sys`, and only what belongs to a network namespace.
fn sysctl_name(key: &str, interface: &str) -> Result<String, String> {
    // Where there is a slash, dots are parts of names, as those of VLAN devices have.
    let mut name = if key.contains('/') { key.to_owned() } else { key.replace('.', "/") };
    name = name.replace("IFNAME", interface);
    let parts: Vec<&str> = name.split('/').collect();
    let is_odd = |part: &&str| part.is_empty() || matches!(*part, "." | "..") || part.contains('\0');
    if parts.first() != Some(&"net") || parts.len() < 2 {
        return Err("it is no parameter of a network namespace: those begin with net".into());
    }
    match parts.iter().find(|part| is_odd(part)) {
        Some(_) => Err("it is not the name of a parameter".into()),
        None => Ok(name),
    }
}

// === impl Change ===

impl Change {
    fn merge(&mut self, fields: &Fields<'_>) -> Result<(), CniError> {
        let word = |key: &str, most: u64| {
            let number = fields.number(key, 0..=most)?;
            Ok::<_, CniError>(number.and_then(|number| u32::try_from(number).ok()))
        };
        self.mac = fields.mac("mac")?.or(self.mac);
        self.is_promiscuous = fields.maybe_bool("promisc")?.or(self.is_promiscuous);
        self.mtu = word("mtu", 65535)?.filter(|mtu| *mtu > 0).or(self.mtu);
        self.is_all_multicast = fields.maybe_bool("allmulti")?.or(self.is_all_multicast);
        self.queue_length = word("txQLen", u64::from(u32::MAX))?.or(self.queue_length);
        Ok(())
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What a device is like, where this would change it: written down before, so that it can be changed back.
    #[must_use]
    pub fn before(&self, now: &Change) -> Change {
        Change {
            mac: self.mac.and(now.mac),
            is_promiscuous: self.is_promiscuous.and(now.is_promiscuous),
            mtu: self.mtu.and(now.mtu),
            is_all_multicast: self.is_all_multicast.and(now.is_all_multicast),
            queue_length: self.queue_length.and(now.queue_length),
        }
    }

    /// What is not as it should be.
    #[must_use]
    pub fn difference(&self, now: &Change) -> Option<String> {
        let told = [
            ("mac", self.mac.map(|m| m.to_string()), now.mac.map(|m| m.to_string())),
            ("promisc", word(self.is_promiscuous), word(now.is_promiscuous)),
            ("mtu", word(self.mtu), word(now.mtu)),
            ("allmulti", word(self.is_all_multicast), word(now.is_all_multicast)),
            ("txQLen", word(self.queue_length), word(now.queue_length)),
        ];
        told.into_iter().find_map(|(key, wanted, is)| {
            let wanted = wanted.filter(|wanted| is.as_ref() != Some(wanted))?;
            Some(format!("{key}: it was set to {wanted} and is {}", is.unwrap_or_default()))
        })
    }

    /// In the file that upstream's plugin would read.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut out = Map::new();
        let told = [
            ("mac", self.mac.map(|mac| json!(mac.to_string()))),
            ("promisc", self.is_promiscuous.map(|is| json!(is))),
            ("mtu", self.mtu.map(|mtu| json!(mtu))),
            ("allmulti", self.is_all_multicast.map(|is| json!(is))),
            ("txQLen", self.queue_length.map(|length| json!(length))),
        ];
        out.extend(told.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
        Value::Object(out)
    }

    pub fn read(fields: &Fields<'_>) -> Result<Self, CniError> {
        let mut change = Self::default();
        change.merge(fields)?;
        Ok(change)
    }
}

fn word<T: ToString>(value: Option<T>) -> Option<String> {
    value.map(|value| value.to_string())
}

/// Whether a list of allowed parameters, one pattern a line, has this one. Patterns are names in which `*` stands for anything.
#[must_use]
pub fn is_allowed(list: &str, name: &str) -> bool {
    let lines = list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let dotted = name.replace('/', ".");
    lines.map(|line| line.trim_start_matches('^').trim_end_matches('$').replace("\\.", ".")).any(|pattern| {
        let pattern = pattern.replace(".*", "*").replace(".+", "*");
        matches(&pattern, name) || matches(&pattern, &dotted)
    })
}

fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, between)) = parts.split_last() else { return rest.is_empty() };
    for part in between {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}
