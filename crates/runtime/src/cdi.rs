//! Specs of the Container Device Interface on this machine. They are read anew for every container that asks for a device:
//! vendors' services write them while we run.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use cri::v1;
use runtime_core::cdi::{Devices, Edits, of_annotations};
use tonic::Status;

use crate::daemon::invalid;

/// Of one file; a machine with many devices needs a few hundred kilobytes.
const FILE_MAX: u64 = 4 << 20;
/// Of one directory.
const FILES_MAX: usize = 256;

/// What the devices that a container asks for change in it. Later directories win.
pub(crate) fn edits(dirs: &[PathBuf], config: &v1::ContainerConfig) -> Result<Edits, Status> {
    let by_field = config.cdi_devices.iter().map(|device| device.name.as_str());
    let names: Vec<&str> = by_field.chain(of_annotations(&config.annotations)).collect();
    if names.is_empty() {
        return Ok(Edits::default());
    }
    if dirs.is_empty() {
        return Err(invalid(format!("CDI device {:?}: CDI is switched off", names[0])));
    }
    let mut devices = Devices::default();
    for (priority, dir) in dirs.iter().enumerate() {
        for path in files(dir) {
            let name = path.display().to_string();
            match read(&path) {
                Ok(text) => devices.add(&name, priority, &text),
                Err(error) => devices.cannot_use(&name, error.to_string()),
            }
        }
    }
    devices.edits(names).map_err(invalid)
}

/// In the order of their names. A directory that is not there has none.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_spec =
        |path: &PathBuf| path.extension().is_some_and(|e| ["json", "yaml", "yml"].iter().any(|x| e == *x));
    let mut files: Vec<PathBuf> = entries.filter(is_spec).take(FILES_MAX).collect();
    files.sort();
    files
}

/// As JSON.
fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?.take(FILE_MAX + 1).read_to_string(&mut text)?;
    if read as u64 > FILE_MAX {
        return Err(io::Error::other("it is too large"));
    }
    if path.extension().is_some_and(|extension| extension == "json") {
        return Ok(text);
    }
    let value: serde_json::Value = serde_saphyr::from_str(&text).map_err(io::Error::other)?;
    Ok(value.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;

    fn asking(name: &str) -> v1::ContainerConfig {
        v1::ContainerConfig { cdi_devices: vec![v1::CdiDevice { name: name.into() }], ..Default::default() }
    }

    #[test]
    fn specs_are_read_as_json_and_as_yaml() {
        let (etc, run) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let dirs = [etc.path().to_owned(), run.path().to_owned(), "/no/such/directory".into()];
        let yaml =
            "cdiVersion: 0.6.0\nkind: v.example/c\ndevices:\n- name: a\n  containerEdits:\n    env: [A=1]\n";
        let json = r#"{"cdiVersion": "0.6.0", "kind": "v.example/c", "devices": [{"name": "b", "containerEdits": {"env": ["B=2"]}}]}"#;
        fs::write(etc.path().join("a.yaml"), yaml).unwrap();
        fs::write(run.path().join("b.json"), json).unwrap();
        fs::write(run.path().join("note.txt"), "{").unwrap();
        let mut both = asking("v.example/c=a");
        both.annotations.insert("cdi.k8s.io/plugin".into(), "v.example/c=b".into());
        let env = edits(&dirs, &both).unwrap().env;
        assert_eq!(env, [("A".to_owned(), "1".to_owned()), ("B".to_owned(), "2".to_owned())]);
        fs::write(run.path().join("c.yaml"), "[").unwrap();
        let error = edits(&dirs, &asking("v.example/c=none")).unwrap_err();
        assert!(
            error.message().contains("v.example/c=none") && error.message().contains("c.yaml"),
            "{error}"
        );
        assert!(edits(&[], &asking("v.example/c=a")).unwrap_err().message().contains("switched off"));
        assert_eq!(edits(&[], &v1::ContainerConfig::default()).unwrap(), Edits::default());
    }
}
