//! The control side of a one-machine node: an API server that kubectl, client libraries and kubelets talk to.

pub mod auth;
pub mod doc;
pub mod kind;
pub mod kinds;
pub mod objects;
pub mod refusal;
pub mod request;
pub mod store;
pub mod table;
