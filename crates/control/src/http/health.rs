//! /livez, /readyz and /healthz.

use super::App;
use super::answer::{self, Answer};
use super::query::Query;
use crate::refusal::Refusal;

/// A thing that can be wrong.
struct Check {
    name: &'static str,
    /// Only readiness depends on it.
    readiness: bool,
    test: fn(&App) -> Result<(), &'static str>,
}

const CHECKS: &[Check] = &[
    Check { name: "ping", readiness: false, test: |_| Ok(()) },
    Check {
        name: "etcd",
        readiness: false,
        test: |app| if app.registry.store().is_open() { Ok(()) } else { Err("the store is closed") },
    },
    Check {
        name: "shutdown",
        readiness: true,
        test: |app| if app.stopping.is_cancelled() { Err("the server is stopping") } else { Ok(()) },
    },
];

/// Answers `/livez[/check]` and its siblings.
pub(crate) fn serve(app: &App, path: &[&str], query: &Query) -> Result<Answer, Refusal> {
    let (root, named) = match path {
        [root] => (*root, None),
        [root, name] => (*root, Some(*name)),
        _ => return Err(Refusal::no_resource()),
    };
    let excluded: Vec<&str> = query.all("exclude").collect();
    let wanted: Vec<&Check> = CHECKS
        .iter()
        .filter(|c| named.map_or(!c.readiness || root == "readyz", |name| c.name == name))
        .collect();
    if wanted.is_empty() {
        return Err(Refusal::no_resource());
    }
    let (mut lines, mut failed) = (String::new(), Vec::new());
    for check in wanted {
        if excluded.contains(&check.name) {
            lines.push_str(&format!("[+]{} excluded: ok\n", check.name));
            continue;
        }
        match (check.test)(app) {
            Ok(()) => lines.push_str(&format!("[+]{} ok\n", check.name)),
            Err(why) => {
                tracing::warn!(check = check.name, why, "health check failed");
                lines.push_str(&format!("[-]{} failed: reason withheld\n", check.name));
                failed.push(check.name);
            }
        }
    }
    if !failed.is_empty() {
        return Ok(answer::text(500, format!("{lines}{root} check failed\n")));
    }
    let verbose = query.get("verbose").is_some();
    Ok(answer::text(200, if verbose { format!("{lines}{root} check passed\n") } else { "ok".to_owned() }))
}
