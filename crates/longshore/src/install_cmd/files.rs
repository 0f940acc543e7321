//! The files of an installed node.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use api::config::up::Up;

use super::Installed;
use crate::completion;

pub(super) const PROGRAM: &str = "/usr/local/bin/longshore";
const UNIT: &str = "/etc/systemd/system/longshore.service";
const COMPLETION: &str = "/usr/local/share/bash-completion/completions/longshore";
pub(super) const RECORD: &str = "/etc/longshore/installed.json";
/// How we know a file for ours.
const MARK: &str = "# Written by longshore install.";

/// The machine's files, or those of one that is being made.
pub(super) struct Root(pub(super) PathBuf);

// === impl Root ===

impl Root {
    pub(super) fn is_machine(&self) -> bool {
        self.0 == Path::new("/")
    }

    /// An absolute path below it.
    pub(super) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.join(path.as_ref().strip_prefix("/").unwrap_or(path.as_ref()))
    }
}

pub(super) fn install(root: &Root, flags: &[String], up: &Up) -> Result<Installed, String> {
    if [&up.data_dir, &up.state_dir].iter().any(|dir| !dir.is_absolute()) {
        return Err("--data-dir and --state-dir of a unit begin with /".to_owned());
    }
    let before = installed(root).unwrap_or_default();
    let unit = root.at(UNIT);
    if fs::read_to_string(&unit).is_ok_and(|text| !text.contains(MARK)) {
        return Err(format!("{} is there already and not ours: move it away first", unit.display()));
    }
    let own = std::env::current_exe().map_err(|e| format!("find this program: {e}"))?;
    let program = fs::read(&own).map_err(|e| format!("read {}: {e}", own.display()))?;
    let mut files = before.files;
    let script = completion::bash();
    let text = format!("{MARK}\n{}", unit_text(flags));
    let wanted: [(&str, &[u8], u32); 3] =
        [(PROGRAM, &program, 0o755), (UNIT, text.as_bytes(), 0o644), (COMPLETION, script.as_bytes(), 0o644)];
    for (path, content, mode) in wanted {
        let goal = root.at(path);
        // A package may have put it there; what is the same is left to it.
        if fs::read(&goal).is_ok_and(|old| old == content) {
            continue;
        }
        write(&goal, content, mode).map_err(|e| format!("write {}: {e}", goal.display()))?;
        if !files.contains(&PathBuf::from(path)) {
            files.push(path.into());
        }
    }
    let installed = Installed { flags: flags.to_vec(), files };
    let record = root.at(RECORD);
    let text = serde_json::to_vec_pretty(&installed).map_err(|e| e.to_string())?;
    write(&record, &text, 0o644).map_err(|e| format!("write {}: {e}", record.display()))?;
    Ok(installed)
}

/// What an earlier install did.
pub(super) fn installed(root: &Root) -> Result<Installed, String> {
    let path = root.at(RECORD);
    let text = fs::read(&path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => format!("{} is not there: nothing was installed", path.display()),
        _ => format!("read {}: {e}", path.display()),
    })?;
    serde_json::from_slice(&text).map_err(|e| format!("{}: {e}", path.display()))
}

/// Whole or not at all: the program may be running.
fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let half = path.with_extension("longshore-new");
    fs::write(&half, content)?;
    fs::set_permissions(&half, fs::Permissions::from_mode(mode))?;
    fs::rename(&half, path)
}

fn unit_text(flags: &[String]) -> String {
    let flags: String = flags.iter().map(|flag| format!(" {}", escaped(flag))).collect();
    format!(
        "[Unit]\n\
         Description=Longshore: a Kubernetes node in one process\n\
         Documentation=https://github.com/longshore/longshore\n\
         Wants=network-online.target\n\
         After=network-online.target containerd.service crio.service\n\
         \n\
         [Service]\n\
         # READY=1 comes when the API server answers and every part was started.\n\
         Type=notify\n\
         ExecStart={PROGRAM} up{flags}\n\
         Restart=always\n\
         RestartSec=2\n\
         # Containers outlive the process, and the next one looks after them.\n\
         KillMode=process\n\
         Delegate=yes\n\
         OOMScoreAdjust=-999\n\
         LimitNOFILE=1000000\n\
         TasksMax=infinity\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n"
    )
}

/// A word as systemd reads it in ExecStart.
fn escaped(word: &str) -> String {
    let text = word.replace('%', "%%").replace('$', "$$");
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./=,:%$@+".contains(&b);
    match text.bytes().all(is_plain) && !text.is_empty() {
        true => text,
        false => format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")),
    }
}

/// Who ran sudo gets a kubeconfig, if he has none yet.
pub(super) fn kubeconfig_for_caller(data: &Path) -> Result<Option<PathBuf>, String> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let (Some(uid), Some(gid)) = (number("SUDO_UID"), number("SUDO_GID")) else { return Ok(None) };
    let Some(home) = home(uid, &fs::read_to_string("/etc/passwd").unwrap_or_default()) else {
        return Ok(None);
    };
    let goal = home.join(".kube/config");
    let text = fs::read(data.join("admin.kubeconfig"));
    let (Ok(text), false) = (text, goal.exists()) else { return Ok(None) };
    let put = || -> io::Result<()> {
        let dir = home.join(".kube");
        if !dir.exists() {
            fs::create_dir(&dir)?;
            chown(&dir, Some(uid), Some(gid))?;
        }
        write(&goal, &text, 0o600)?;
        chown(&goal, Some(uid), Some(gid))
    };
    put().map_err(|e| format!("write {}: {e}", goal.display()))?;
    Ok(Some(goal))
}

fn home(uid: u32, passwd: &str) -> Option<PathBuf> {
    let mut users = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let user = users.find(|user| user.get(2).and_then(|text| text.parse().ok()) == Some(uid))?;
    user.get(5).map(PathBuf::from).filter(|home| home.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_program_as_they_were() {
        for (word, want) in [
            ("--disable=dns,images", "--disable=dns,images"),
            ("--node-name=a b", "\"--node-name=a b\""),
            ("--x=100%", "--x=100%%"),
            ("$HOME", "$$HOME"),
            ("a\"b\\c", "\"a\\\"b\\\\c\""),
            ("", "\"\""),
        ] {
            assert_eq!(escaped(word), want);
        }
    }

    #[test]
    fn the_home_of_a_user_is_found() {
        let passwd = "root:x:0:0:root:/:/bin/sh\nann:x:1000:1000::/nonexistent-home:/bin/sh\n";
        assert_eq!(home(0, passwd), Some("/".into()));
        assert_eq!(home(1000, passwd), None);
        assert_eq!(home(7, passwd), None);
    }
}
