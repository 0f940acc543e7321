//! A memory limit is not set below what is in use: the kernel would kill for it.

use std::collections::BTreeMap;

use super::{Due, Resource, Update};

/// Bytes of memory in use, where it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub pod: Option<u64>,
    /// By container.
    pub containers: BTreeMap<String, u64>,
}

/// Refuses limits that are below what is in use. `now` and `next` are the limits of the Pod's cgroup; none: no limit.
/// The figures are asked for only where a limit shrinks.
pub fn check_shrink(
    due: &Due,
    now: Option<i64>,
    next: Option<i64>,
    usage: impl FnOnce() -> Option<Usage>,
) -> Result<(), String> {
    let of_pod = next.filter(|next| now.is_none_or(|now| *next < now));
    let shrinking: Vec<&Update> = due.memory.iter().filter(|u| shrinks(u)).collect();
    let touches_memory = !due.memory.is_empty() || due.restarts;
    if !touches_memory || (of_pod.is_none() && shrinking.is_empty()) {
        return Ok(());
    }
    let Some(usage) = usage() else { return Err("unable to read memory usage for pod".to_owned()) };
    let mut wrong = Vec::new();
    if let Some(limit) = of_pod {
        match usage.pod {
            None => wrong.push("missing pod memory usage".to_owned()),
            Some(used) if is_below(limit, used) => {
                wrong.push(format!(
                    "attempting to set pod memory limit ({limit}) below current usage ({used})"
                ));
            }
            Some(_) => {}
        }
    }
    for update in shrinking {
        let (name, limit) = (&update.container, update.desired.memory_limit);
        match usage.containers.get(name) {
            None => wrong.push(format!("missing container {name:?} memory usage")),
            Some(used) if is_below(limit, *used) => wrong.push(format!(
                "attempting to set container {name:?} memory limit ({limit}) below current usage ({used})"
            )),
            Some(_) => {}
        }
    }
    match wrong.as_slice() {
        [] => Ok(()),
        [one] => Err(format!("cannot decrease memory limits: {one}")),
        all => Err(format!("cannot decrease memory limits: [{}]", all.join(", "))),
    }
}

fn shrinks(update: &Update) -> bool {
    let (now, next) = (update.current.limit(Resource::Memory), update.desired.limit(Resource::Memory));
    next != 0 && (now == 0 || next < now)
}

fn is_below(limit: i64, used: u64) -> bool {
    u64::try_from(limit).is_ok_and(|limit| used >= limit)
}
