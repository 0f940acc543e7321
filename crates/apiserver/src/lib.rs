//! kube-apiserver for one machine: an API server that kubectl, client libraries and kubelets talk to.

pub mod admission;
pub mod auth;
pub mod clock;
pub mod controllers;
mod first_objects;
pub mod http;
pub mod objects;
mod random;
pub mod registry;
pub mod run;
mod store_errors;
mod tasks;
