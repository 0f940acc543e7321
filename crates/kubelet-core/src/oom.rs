//! What the kernel writes when it kills for want of memory: upstream's OOM watcher.

/// A process that the kernel killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Killed {
    pub process: String,
    pub pid: u32,
    /// The cgroup whose limit it was; `/` is the machine itself.
    pub limit_of: String,
}

/// Reads the kernel's log, record by record.
#[derive(Clone, Debug, Default)]
pub struct OomReader {
    /// The kernel began to tell of one, and this is whose limit it named so far.
    under_way: Option<String>,
}

// === impl Killed ===

impl Killed {
    /// The message of the node's event, if the whole machine ran out of memory. A container's end is told by the runtime.
    #[must_use]
    pub fn system_message(&self) -> Option<String> {
        let named = !self.process.is_empty() && self.pid != 0;
        (self.limit_of == "/").then(|| match named {
            true => format!("System OOM encountered, victim process: {}, pid: {}", self.process, self.pid),
            false => "System OOM encountered".to_owned(),
        })
    }
}

// === impl OomReader ===

impl OomReader {
    /// Takes one record: `priority,sequence,time,flags;message`.
    pub fn read(&mut self, record: &str) -> Option<Killed> {
        let message = record.split_once(';').map_or(record, |(_, m)| m);
        let message = message.lines().next().unwrap_or_default();
        if message.contains("invoked oom-killer:") {
            self.under_way = Some("/".to_owned());
            return None;
        }
        let limit_of = self.under_way.as_mut()?;
        if let Some(fields) = message.split_once("oom-kill:constraint=").map(|(_, f)| f) {
            let killed = modern(fields)?;
            self.under_way = None;
            return Some(killed);
        }
        if let Some((_, cgroup)) = message.split_once(" killed as a result of limit of ") {
            *limit_of = cgroup.trim().to_owned();
            return None;
        }
        let (_, rest) = message.split_once("Killed process ")?;
        let (pid, rest) = rest.split_once(" (")?;
        let (process, _) = rest.split_once(')')?;
        let digits = pid.split(|c: char| !c.is_ascii_digit()).next()?;
        let pid = digits.parse().ok()?;
        let limit_of = self.under_way.take().unwrap_or_default();
        Some(Killed { process: process.to_owned(), pid, limit_of })
    }
}

/// `CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a/b,task=x,pid=1,uid=0`. Without a
/// cgroup whose limit it was, the kernel writes `global_oom` in its place.
fn modern(fields: &str) -> Option<Killed> {
    let of = |name: &str| fields.split(',').find_map(|f| f.strip_prefix(name)?.strip_prefix('='));
    let limit_of = of("oom_memcg").unwrap_or("/").to_owned();
    Some(Killed { process: of("task")?.to_owned(), pid: of("pid")?.parse().ok()?, limit_of })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Vec<Killed> {
        let mut reader = OomReader::default();
        lines.iter().filter_map(|l| reader.read(&format!("6,1,2,-;{l}\n SUBSYSTEM=x\n"))).collect()
    }

    fn killed(process: &str, pid: u32, limit_of: &str) -> Killed {
        Killed { process: process.into(), pid, limit_of: limit_of.into() }
    }

    #[test]
    fn both_forms_of_the_kernel_are_understood() {
        let start = "stress invoked oom-killer: gfp_mask=0xcc0, order=0, oom_score_adj=1000";
        let memcg = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,\
                     oom_memcg=/kubepods,task_memcg=/kubepods/p,task=stress,pid=42,uid=0";
        let global = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,\
                      task_memcg=/kubepods/p,task=stress,pid=43,uid=0";
        let end = "Memory cgroup out of memory: Killed process 42 (stress) total-vm:1kB";
        assert_eq!(read(&[start, "Mem-Info:", memcg, end]), [killed("stress", 42, "/kubepods")], "told once");
        assert_eq!(read(&[start, global]), [killed("stress", 43, "/")]);
        let old = "Task in /kubepods/p killed as a result of limit of /kubepods";
        assert_eq!(read(&[start, old, "Killed process 7 (a b) total-vm"]), [killed("a b", 7, "/kubepods")]);
        assert_eq!(
            read(&[start, "Out of memory: Killed process 8, UID 0, (x)", "Killed process 9 (y)"]).len(),
            1
        );
        assert!(read(&[memcg, end, "nonsense", ""]).is_empty(), "nothing that did not begin");
    }

    #[test]
    fn only_the_machine_itself_is_the_nodes_matter() {
        let text = "System OOM encountered, victim process: x, pid: 3";
        assert_eq!(killed("x", 3, "/").system_message().as_deref(), Some(text));
        assert_eq!(killed("", 0, "/").system_message().as_deref(), Some("System OOM encountered"));
        assert_eq!(killed("x", 3, "/kubepods").system_message(), None);
    }
}
