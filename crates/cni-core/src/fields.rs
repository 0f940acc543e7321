//! A configuration, field by field: what is absent is left out, what is wrong is named with its whole path, what nobody asks
//! for is nobody's business.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde_json::{Map, Value};

use crate::error::CniError;
use crate::mac::Mac;

/// An object and the way to it.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

// === impl Fields ===

impl<'a> Fields<'a> {
    #[must_use]
    pub fn new(map: &'a Map<String, Value>) -> Self {
        Self { map, path: String::new() }
    }

    /// The name of a field, as complaints have it.
    #[must_use]
    pub fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// JSON's null is as good as nothing.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    #[must_use]
    pub fn map(&self) -> &'a Map<String, Value> {
        self.map
    }

    fn typed<T>(
        &self,
        key: &str,
        what: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, CniError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match read(value) {
            Some(found) => Ok(Some(found)),
            None => Err(CniError::field(&self.path(key), format!("{} is not {what}", shown(value)))),
        }
    }

    pub fn bool(&self, key: &str) -> Result<bool, CniError> {
        Ok(self.maybe_bool(key)?.unwrap_or(false))
    }

    pub fn maybe_bool(&self, key: &str) -> Result<Option<bool>, CniError> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub fn text(&self, key: &str) -> Result<Option<&'a str>, CniError> {
        self.typed(key, "a text", Value::as_str)
    }

    pub fn number(&self, key: &str, range: std::ops::RangeInclusive<u64>) -> Result<Option<u64>, CniError> {
        let what = format!("a number from {} to {}", range.start(), range.end());
        self.typed(key, &what, |value| value.as_u64().filter(|number| range.contains(number)))
    }

    /// A text in another form. An empty one is as good as none.
    fn parsed<T: FromStr>(&self, key: &str, what: &str) -> Result<Option<T>, CniError> {
        let text = self.text(key)?.filter(|text| !text.is_empty());
        let Some(text) = text else { return Ok(None) };
        match text.parse() {
            Ok(found) => Ok(Some(found)),
            Err(_) => Err(CniError::field(&self.path(key), format!("{text:?} is not {what}"))),
        }
    }

    pub fn ip(&self, key: &str) -> Result<Option<IpAddr>, CniError> {
        Ok(self.parsed(key, "an IP address")?.map(|ip: IpAddr| ip.to_canonical()))
    }

    pub fn network(&self, key: &str) -> Result<Option<IpNet>, CniError> {
        self.parsed(key, "an address with the length of its network, as in 10.1.0.0/16")
    }

    pub fn mac(&self, key: &str) -> Result<Option<Mac>, CniError> {
        self.parsed(key, "a hardware address, as in 02:11:22:33:44:55")
    }

    pub fn fields(&self, key: &str) -> Result<Option<Fields<'a>>, CniError> {
        let map = self.typed(key, "an object", Value::as_object)?;
        Ok(map.map(|map| Fields { map, path: self.path(key) }))
    }

    /// The elements of a list with their names; none where there is no list.
    pub fn list(&self, key: &str) -> Result<Vec<(String, &'a Value)>, CniError> {
        let list = self.typed(key, "a list", Value::as_array)?;
        Ok(named(&self.path(key), list.map(Vec::as_slice).unwrap_or_default()))
    }

    pub fn objects(&self, key: &str) -> Result<Vec<Fields<'a>>, CniError> {
        self.list(key)?.into_iter().map(|(path, value)| Self::of(value, path)).collect()
    }

    pub fn of(value: &'a Value, path: String) -> Result<Fields<'a>, CniError> {
        match value {
            Value::Object(map) => Ok(Fields { map, path }),
            other => Err(CniError::field(&path, format!("{} is not an object", shown(other)))),
        }
    }

    pub fn texts(&self, key: &str) -> Result<Vec<String>, CniError> {
        let each = self.list(key)?.into_iter().map(|(path, value)| match value.as_str() {
            Some(text) => Ok(text.to_owned()),
            None => Err(CniError::field(&path, format!("{} is not a text", shown(value)))),
        });
        each.collect()
    }
}

/// The elements of a list with their names.
#[must_use]
pub fn named<'a>(path: &str, list: &'a [Value]) -> Vec<(String, &'a Value)> {
    list.iter().enumerate().map(|(at, value)| (format!("{path}[{at}]"), value)).collect()
}

/// What is wrong may be long.
fn shown(value: &Value) -> String {
    const MOST: usize = 60;
    let mut text = value.to_string();
    if text.chars().count() > MOST {
        text = text.chars().take(MOST).chain(['…']).collect();
    }
    text
}
