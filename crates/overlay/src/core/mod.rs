//! Decides: who is where, which ways lead there, and what of it the kernel lacks. Nothing in here touches the world.

pub(crate) mod files;
pub(crate) mod lease;
pub(crate) mod mac;
pub(crate) mod masquerade;
pub(crate) mod net_conf;
pub(crate) mod node;
pub(crate) mod plan;
pub(crate) mod steps;
pub(crate) mod underlay;

use std::net::IpAddr;

use ipnet::IpNet;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    V4,
    V6,
}

/// One thing of each family, where it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Both<T> {
    pub v4: Option<T>,
    pub v6: Option<T>,
}

// === impl Family ===

impl Family {
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];

    #[must_use]
    pub fn of(ip: IpAddr) -> Family {
        if ip.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    #[must_use]
    pub fn of_net(net: IpNet) -> Family {
        Family::of(net.addr())
    }

    /// The length of the mask of a single address.
    #[must_use]
    pub fn whole(self) -> u8 {
        match self {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }
}

// === impl Both ===

impl<T> Default for Both<T> {
    fn default() -> Self {
        Both { v4: None, v6: None }
    }
}

impl<T> Both<T> {
    #[must_use]
    pub fn get(&self, family: Family) -> Option<&T> {
        match family {
            Family::V4 => self.v4.as_ref(),
            Family::V6 => self.v6.as_ref(),
        }
    }

    pub fn set(&mut self, family: Family, value: Option<T>) {
        match family {
            Family::V4 => self.v4 = value,
            Family::V6 => self.v6 = value,
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.v4.iter().chain(self.v6.iter())
    }
}
