//! A `config.toml` for containerd: what of it means the same to us.

use std::path::PathBuf;

use toml::{Table, Value};

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Containerd {
    pub cni_conf_dir: Option<PathBuf>,
    pub cni_bin_dirs: Vec<PathBuf>,
    pub registry_config_path: Option<PathBuf>,
    /// Empty where CDI is switched off; none where nothing is said.
    pub cdi_spec_dirs: Option<Vec<PathBuf>>,
    /// Names of handlers. All of them are run by our own launcher.
    pub handlers: Vec<String>,
    /// Everything else that is said, by its path.
    pub not_honoured: Vec<String>,
}

/// Tables of the CRI plugin, in versions 2 and 3 of the file.
const RUNTIME: [&str; 2] = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"];
const IMAGES: [&str; 2] = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images"];
/// Where containerd itself lies and listens: ours are flags.
const ELSEWHERE: [&str; 12] = [
    "version",
    "root",
    "state",
    "grpc",
    "disabled_plugins",
    "required_plugins",
    "debug",
    "metrics",
    "ttrpc",
    "timeouts",
    "imports",
    "oom_score",
];

impl Containerd {
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut file: Table = toml::from_str(text).map_err(|error| error.to_string())?;
        let mut found = Self::default();
        let mut plugins = match file.remove("plugins") {
            Some(Value::Table(plugins)) => plugins,
            Some(_) => return Err("plugins: want a table".to_owned()),
            None => Table::new(),
        };
        for name in RUNTIME {
            if let Some(table) = table(&mut plugins, name) {
                found.cni(table)?;
                found.runtimes(name, table)?;
                found.cdi(table)?;
            }
        }
        for name in IMAGES {
            if let Some(registry) = table(&mut plugins, name).and_then(|cri| self::table(cri, "registry"))
                && let Some(path) = text_of(registry, "config_path", name)?
            {
                found.registry_config_path = Some(path.into());
            }
        }
        file.retain(|key, _| !ELSEWHERE.contains(&key));
        file.insert("plugins".to_owned(), Value::Table(plugins));
        leaves("", &Value::Table(file), &mut found.not_honoured);
        Ok(found)
    }

    fn cni(&mut self, cri: &mut Table) -> Result<(), String> {
        let Some(cni) = table(cri, "cni") else { return Ok(()) };
        self.cni_conf_dir = text_of(cni, "conf_dir", "cni")?.map(Into::into);
        self.cni_bin_dirs.extend(text_of(cni, "bin_dir", "cni")?.map(PathBuf::from));
        self.cni_bin_dirs.extend(paths(cni, "bin_dirs", "cni")?.unwrap_or_default());
        Ok(())
    }

    fn cdi(&mut self, cri: &mut Table) -> Result<(), String> {
        if let Some(dirs) = paths(cri, "cdi_spec_dirs", "cri")? {
            self.cdi_spec_dirs = Some(dirs);
        }
        match cri.remove("enable_cdi") {
            None | Some(Value::Boolean(true)) => {}
            Some(Value::Boolean(false)) => self.cdi_spec_dirs = Some(vec![]),
            Some(_) => return Err("cri.enable_cdi: want true or false".to_owned()),
        }
        Ok(())
    }

    /// Every handler is a name for our launcher. Where systemd is to make the cgroups, limits would be lost, so that is no
    /// small difference.
    fn runtimes(&mut self, name: &str, cri: &mut Table) -> Result<(), String> {
        let Some(containerd) = table(cri, "containerd") else { return Ok(()) };
        let Some(runtimes) = table(containerd, "runtimes") else { return Ok(()) };
        for (handler, settings) in runtimes.iter_mut() {
            self.handlers.push(handler.clone());
            let options = settings.as_table_mut().and_then(|table| self::table(table, "options"));
            if let Some(Value::Boolean(true)) = options.and_then(|options| options.remove("SystemdCgroup")) {
                return Err(format!(
                    "plugins.{name:?}.containerd.runtimes.{handler}.options.SystemdCgroup: cgroups by systemd are not \
                     supported; use the cgroup driver cgroupfs here and in the kubelet"
                ));
            }
        }
        Ok(())
    }
}

fn table<'a>(of: &'a mut Table, key: &str) -> Option<&'a mut Table> {
    of.get_mut(key).and_then(Value::as_table_mut)
}

fn paths(of: &mut Table, key: &str, place: &str) -> Result<Option<Vec<PathBuf>>, String> {
    let bad = || format!("{place}.{key}: want a list of paths");
    match of.remove(key) {
        None => Ok(None),
        Some(Value::Array(all)) => all
            .iter()
            .map(|path| path.as_str().map(PathBuf::from).ok_or_else(bad))
            .collect::<Result<_, _>>()
            .map(Some),
        Some(_) => Err(bad()),
    }
}

fn text_of(of: &mut Table, key: &str, place: &str) -> Result<Option<String>, String> {
    match of.remove(key) {
        None => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("{place}.{key}: want text")),
    }
}

/// The paths of all that is not a table.
fn leaves(path: &str, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                let key = if key.contains('.') { format!("{key:?}") } else { key.clone() };
                let path = if path.is_empty() { key } else { format!("{path}.{key}") };
                leaves(&path, value, found);
            }
        }
        _ => found.push(path.to_owned()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_means_the_same_is_read_and_the_rest_is_named() {
        let text = r#"
version = 3
root = "/var/lib/containerd"
[plugins.'io.containerd.cri.v1.images'.registry]
config_path = "/etc/certs.d"
[plugins.'io.containerd.cri.v1.runtime']
max_container_log_line_size = 1
cdi_spec_dirs = ["/cdi"]
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["/a", "/b"]
conf_dir = "/net.d"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false
"#;
        let found = Containerd::parse(text).unwrap();
        assert_eq!(found.cni_bin_dirs, [PathBuf::from("/a"), PathBuf::from("/b")]);
        assert_eq!(found.registry_config_path, Some("/etc/certs.d".into()));
        assert_eq!(found.cdi_spec_dirs, Some(vec!["/cdi".into()]));
        let off = "[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false";
        assert_eq!(Containerd::parse(off).unwrap().cdi_spec_dirs, Some(vec![]));
        assert_eq!((found.cni_conf_dir, found.handlers), (Some("/net.d".into()), vec!["runc".to_owned()]));
        assert_eq!(
            found.not_honoured,
            [
                "plugins.\"io.containerd.cri.v1.runtime\".max_container_log_line_size",
                "plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.runc.runtime_type",
            ]
        );
    }

    #[test]
    fn version_two_is_read_too() {
        let text = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = '/a'\nconf_dir = '/c'\n\
            [plugins.\"io.containerd.grpc.v1.cri\".registry]\nconfig_path = '/r'\n";
        let found = Containerd::parse(text).unwrap();
        assert_eq!(found.cni_bin_dirs, [PathBuf::from("/a")]);
        assert_eq!(found.registry_config_path, Some("/r".into()));
        assert!(found.not_honoured.is_empty());
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        let systemd = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\nSystemdCgroup = true\n";
        let error = Containerd::parse(systemd).unwrap_err();
        assert!(error.contains("runtimes.runc.options.SystemdCgroup"), "{error}");
        let error =
            Containerd::parse("[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = 5\n").unwrap_err();
        assert!(error.contains("cni.bin_dirs"), "{error}");
    }
}
