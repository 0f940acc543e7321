//! DefaultBinder: the Pod is bound by a POST to its `binding`. The agent does it; here is what it says when that fails.

use std::sync::Arc;

use api::config::scheduler::PluginArgs;

use crate::framework::Plugin;

#[derive(Debug)]
struct DefaultBinder;

pub fn make(_: &PluginArgs) -> Arc<dyn Plugin> {
    Arc::new(DefaultBinder)
}

impl Plugin for DefaultBinder {}

/// How a failed binding reads in the Pod's condition.
#[must_use]
pub fn failure(error: &str) -> String {
    format!("running Bind plugin \"DefaultBinder\": {error}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_failed_binding_names_the_plugin() {
        assert_eq!(super::failure("no"), "running Bind plugin \"DefaultBinder\": no");
    }
}
