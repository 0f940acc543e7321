//! The files of one cgroup, read one after the other: each of its directories is looked for once and not with every file.

use std::cell::OnceCell;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, openat};

use super::{Hierarchies, Hierarchy, Version};

/// No file of a cgroup is read beyond that.
const MOST: usize = 256 << 10;
/// Cgroups directly below one that are listed at most.
const CHILDREN_MAX: usize = 4096;

/// See the module.
#[derive(Debug)]
pub struct Files<'a> {
    tree: &'a Hierarchies,
    name: &'a str,
    /// By hierarchy; none for one in which the cgroup is not.
    dirs: Vec<OnceCell<Option<OwnedFd>>>,
}

// === impl Hierarchies ===

impl Hierarchies {
    /// The files of a cgroup.
    #[must_use]
    pub fn files<'a>(&'a self, name: &'a str) -> Files<'a> {
        let dirs = self.mounts.iter().map(|_| OnceCell::new()).collect();
        Files { tree: self, name: name.trim_start_matches('/'), dirs }
    }
}

// === impl Files ===

impl Files<'_> {
    /// What a file of a controller says; none if there is no such file.
    #[must_use]
    pub fn read(&self, controller: &str, file: &str) -> Option<String> {
        let dir = self.dir(controller)?;
        let fd = openat(dir, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let text = read_all(&fd).ok()?;
        String::from_utf8(text).ok()
    }

    /// Whether the cgroup is there.
    #[must_use]
    pub fn exist(&self) -> bool {
        self.main().is_some()
    }

    /// The processes in the cgroup, without those below it.
    #[must_use]
    pub fn processes(&self) -> Vec<i32> {
        let of = |controller| self.read(controller, "cgroup.procs");
        let text = of("pids").or_else(|| of("memory")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// The cgroups directly below it.
    #[must_use]
    pub fn children(&self) -> Vec<String> {
        let Some(entries) = self.main().and_then(|dir| Dir::read_from(dir).ok()) else { return Vec::new() };
        let is_dir = |e: &rustix::fs::DirEntry| e.file_type() == FileType::Directory;
        let names =
            entries.flatten().filter(is_dir).filter_map(|e| e.file_name().to_str().ok().map(str::to_owned));
        names.filter(|n| n != "." && n != "..").take(CHILDREN_MAX).collect()
    }

    /// When its directory last changed, in seconds since the epoch.
    #[must_use]
    pub fn changed(&self) -> Option<i64> {
        rustix::fs::fstat(self.main()?).ok().map(|stat| stat.st_mtime)
    }

    /// Where every cgroup of a Pod or a service is.
    fn main(&self) -> Option<&OwnedFd> {
        self.dir("memory").or_else(|| self.dir("pids"))
    }

    fn dir(&self, controller: &str) -> Option<&OwnedFd> {
        let of = |h: &Hierarchy| h.controllers.iter().any(|c| c == controller);
        let index = match self.tree.version {
            Version::V2 => 0,
            Version::V1 => self.tree.mounts.iter().position(of)?,
        };
        let root = &self.tree.mounts.get(index)?.root;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = || openat(CWD, root.join(self.name), flags, Mode::empty()).ok();
        self.dirs.get(index)?.get_or_init(open).as_ref()
    }
}

fn read_all(fd: &OwnedFd) -> io::Result<Vec<u8>> {
    let (mut text, mut piece) = (Vec::new(), [0; 4096]);
    while text.len() < MOST {
        match rustix::io::read(fd, &mut piece)? {
            0 => break,
            n => text.extend_from_slice(&piece[..n]),
        }
    }
    Ok(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_files_of_a_cgroup_are_found_in_its_hierarchies() {
        crate::scratch::run(look_into);
    }

    fn look_into(root: &Path) {
        let hierarchy = |name: &str, controllers: &[&str]| Hierarchy {
            controllers: controllers.iter().map(|c| (*c).to_owned()).collect(),
            root: root.join(name),
        };
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("cpu/a/b/cpu.stat", "nr_periods 1\n");
        write("memory/a/b/memory.stat", &"x 1\n".repeat(2000));
        write("memory/a/b/cgroup.procs", "7\n8\n");
        write("memory/a/b/c/memory.stat", "");
        let mounts = vec![hierarchy("cpu", &["cpu", "cpuacct"]), hierarchy("memory", &["memory"])];
        let old = Hierarchies { version: Version::V1, mounts };
        let files = old.files("/a/b");
        assert_eq!(files.read("cpuacct", "cpu.stat").as_deref(), Some("nr_periods 1\n"));
        assert_eq!(files.read("memory", "memory.stat").map(|t| t.len()), Some(8000));
        assert_eq!((files.read("pids", "pids.max"), files.read("memory", "gone")), (None, None));
        assert_eq!((files.processes(), files.children()), (vec![7, 8], vec!["c".to_owned()]));
        assert!(files.exist() && files.changed().is_some());
        let none = old.files("a/none");
        assert!(!none.exist() && none.children().is_empty() && none.processes().is_empty());
        let new = Hierarchies { version: Version::V2, mounts: vec![hierarchy("memory", &[])] };
        assert_eq!(new.files("a/b").read("", "cgroup.procs").as_deref(), Some("7\n8\n"));
    }
}
