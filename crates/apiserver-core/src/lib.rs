//! What an API server decides, as data in and data out: the kinds, what may be written, who may do it, and how an
//! error status reads. No store, no sockets, no clock, no randomness: `apiserver` brings those.

pub mod admission;
pub mod api_status;
pub mod asked;
pub mod auth;
pub mod body;
pub mod call;
pub mod catalog;
pub mod custom;
pub mod deletion;
pub mod doc;
pub mod document;
pub mod kind;
pub mod kinds;
pub mod label_selector;
pub mod managed_fields;
pub mod meta;
pub mod node_metrics;
pub mod options;
pub mod request;
pub mod selection;
pub mod table;
