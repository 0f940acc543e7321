//! Replacing the files of a volume under running containers, all at once.
//!
//! The files live in a directory of their own, `..<time>.<random>`; the link `..data` names the current
//! one and is swapped by a rename; each visible name is a link through `..data`. A reader sees the old
//! set or the new one. The names are upstream's, because programs watch `..data`.

use std::collections::{BTreeMap, BTreeSet};

/// Content by relative path.
pub type Payload = BTreeMap<String, File>;

#[derive(Clone, PartialEq, Eq)]
pub struct File {
    pub data: Vec<u8>,
    pub mode: u32,
    /// Who owns it; nearly always root.
    pub uid: u32,
}

/// Without its content, which may be secret.
impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "File {{ {} bytes, mode: {:o}, uid: {} }}", self.data.len(), self.mode, self.uid)
    }
}

/// What is in the volume now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// Where `..data` leads, if to a directory that exists.
    pub data_dir: Option<String>,
    /// What is in there; `None` when something in it is not as we write it (a wrong owner, a link).
    pub payload: Option<Payload>,
    /// Visible names that are links through `..data`.
    pub links: BTreeSet<String>,
    /// Directories at the top that no write makes. Containers have other volumes mounted there, or a subPath leads
    /// there: whoever removed them would take those away too.
    pub dirs: BTreeSet<String>,
    /// Everything else at the top but `..data` and its directory: what an interrupted write left.
    pub strange: BTreeSet<String>,
}

/// The steps, to be taken in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Write the payload to a new directory and swap `..data` to it.
    pub write: bool,
    /// Make these visible names. Names that exist as some other file or link are removed first.
    pub link: Vec<String>,
    /// Remove these from the top, whatever they are.
    pub remove: Vec<String>,
}

pub const DATA: &str = "..data";
pub const DATA_TMP: &str = "..data_tmp";

/// What turns `present` into `wanted`. Nothing, when it is so already.
#[must_use]
pub fn plan(present: &Present, wanted: &Payload) -> Steps {
    let visible: BTreeSet<String> = wanted.keys().map(|path| top(path).to_owned()).collect();
    let write = present.data_dir.is_none() || present.payload.as_ref() != Some(wanted);
    let old = present.data_dir.iter().filter(|_| write).cloned();
    let gone = present.links.difference(&visible).cloned();
    let left = present.strange.difference(&visible).cloned();
    Steps {
        write,
        // A directory in the way stays, and hides the file, as upstream has it.
        link: visible
            .difference(&present.links)
            .filter(|name| !present.dirs.contains(*name))
            .cloned()
            .collect(),
        remove: gone.chain(left).chain(old).collect(),
    }
}

/// Refuses paths that would lead out of the volume, collide with our own names, or with each other.
pub fn validate(payload: &Payload) -> Result<(), String> {
    for path in payload.keys() {
        let bad = |why: &str| Err(format!("invalid path {path:?}: {why}"));
        if path.is_empty() || path == "." {
            return bad("must not be empty");
        }
        if path.starts_with('/') {
            return bad("must be relative");
        }
        if path.starts_with("..") {
            return bad("must not start with '..'");
        }
        if path.split('/').any(|part| part == "..") {
            return bad("must not contain '..'");
        }
        if path.contains('\0') || path.len() > 4096 || path.split('/').any(|part| part.len() > 255) {
            return bad("not a path a file can have");
        }
        let parents = path.match_indices('/').map(|(at, _)| &path[..at]);
        if let Some(file) = parents.into_iter().find(|p| payload.contains_key(*p)) {
            return bad(&format!("{file:?} is a file"));
        }
    }
    Ok(())
}

/// A path without empty and `.` components.
#[must_use]
pub fn clean(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty() && *p != ".").collect();
    let clean = parts.join("/");
    if path.starts_with('/') { format!("/{clean}") } else { clean }
}

/// The first component: the name that is visible at the top of the volume.
#[must_use]
pub fn top(path: &str) -> &str {
    path.split('/').next().unwrap_or(path)
}
