//! Cgroups that somebody else made, and that the node holds to what is kept back for them.

use std::io;

use kubelet_core::cgroup::{Limits, Name};
use sys::cgroup::Version;

use super::{Inner, NodeCgroups, invalid};

/// Without these a cgroup cannot be held to anything.
const NEEDED: [&str; 5] = ["cpu", "cpuset", "memory", "pids", "hugetlb"];

impl NodeCgroups {
    /// Holds a cgroup to these limits. It has to be there: who made it knows what belongs in it.
    pub async fn hold_existing(&self, path: &str, limits: &Limits) -> io::Result<()> {
        let name = Name::parse(path, self.0.driver()).map_err(invalid)?;
        if *limits == Limits::default() {
            return Err(io::Error::other(format!("{name} cgroup is not configured properly")));
        }
        let of = name.clone();
        self.aside(move |inner| inner.check_existing(&of)).await?;
        self.change(&name, limits).await
    }
}

impl Inner {
    fn check_existing(&self, name: &Name) -> io::Result<()> {
        let path = self.path(name);
        if self.hand.version() == Version::V2 {
            return self.check_controllers(name, &path);
        }
        let needed =
            |controllers: &str| controllers.split(',').any(|c| NEEDED.contains(&c) || c == "cpuacct");
        let all = self.hand.directories(&path).into_iter();
        let missing = all.filter(|(controllers, dir)| needed(controllers) && !dir.is_dir());
        let mut missing: Vec<String> = missing.map(|(_, dir)| dir.display().to_string()).collect();
        missing.sort();
        match missing.is_empty() {
            true => Ok(()),
            false => {
                let text = format!("cgroup {name} has some missing paths: {}", missing.join(", "));
                Err(io::Error::other(text))
            }
        }
    }

    /// Those that the top has and this one has not cannot hold it to anything.
    fn check_controllers(&self, name: &Name, path: &str) -> io::Result<()> {
        let read = |path: &str| self.hand.read(path, "", "cgroup.controllers");
        let Some(own) = read(path)? else {
            let text = format!("could not read controllers for cgroup {name}: there is no {path}");
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        };
        let top = read("")?.unwrap_or_default();
        let has = |list: &str, c: &str| list.split_whitespace().any(|word| word == c);
        let mut missing: Vec<&str> = NEEDED.into_iter().filter(|c| has(&top, c) && !has(&own, c)).collect();
        missing.sort_unstable();
        match missing.is_empty() {
            true => Ok(()),
            false => {
                let text = format!("cgroup {name} has some missing controllers: {}", missing.join(", "));
                Err(io::Error::other(text))
            }
        }
    }
}
