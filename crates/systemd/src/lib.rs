//! A hand for systemd: what it is told of this process ([`notify`]), the login manager that takes the machine down
//! ([`logind`]), and the message bus both of them and the units are reached by ([`bus`]).

pub mod bus;
pub mod logind;
pub mod notify;

pub use bus::Places;
pub use notify::Systemd;
