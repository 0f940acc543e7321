//! What decides. Data in, data out: nothing here looks at the machine, the clock or the API server.

pub(crate) mod load_balancer;
pub(crate) mod local_path;
pub(crate) mod manifest;
