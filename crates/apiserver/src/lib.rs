//! kube-apiserver for one machine: an API server that kubectl, client libraries and kubelets talk to.

pub mod admission;
pub mod auth;
pub mod clock;
pub mod controllers;
pub mod custom;
pub mod doc;
mod first_objects;
pub mod http;
pub mod kind;
pub mod kinds;
pub mod objects;
pub mod refusal;
pub mod registry;
pub mod request;
pub mod run;
pub mod table;
mod trouble;
