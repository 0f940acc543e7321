//! `longshore images …`: the images of this machine's container runtime, no kubelet needed.

use std::ffi::OsString;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use cri::v1::{AuthConfig, Image, ImageSpec};
use cri::{Archives, Client, Endpoint};
use tokio::sync::mpsc;

use crate::console;
use crate::node_here::NodeHere;

mod args;
mod files;
mod offline;

use args::{Command, Options, Place};

pub(crate) const USAGE: &str = "\
See, bring and remove the images of this machine's container runtime.

Usage:
  longshore images ls [-q]
  longshore images pull NAME [--creds USER:PASSWORD]
  longshore images import FILE... [--pin]
  longshore images export NAME... -o FILE|-
  longshore images rm NAME...

ls: names, id and size; -q the ids alone.
pull: from its registry, as the runtime is set up for it. USER:PASSWORD may be - to be read from standard input.
import: archives in the layout of OCI, or of `docker save`, packed or not; - is standard input. --pin keeps the kubelet from collecting
the images.
export: an archive in the layout of OCI, for import here and elsewhere. Layers are archived anew: digests are others, content is the same.
rm: by any name; all other names of the image go with it.

Flags:
      --runtime ENDPOINT   default that of the node that runs here, else unix:///run/longshore/runtime.sock; import and export need
                           Longshore's own runtime there
      --root-dir DIR       of a runtime that is not running, for ls and import: its directory is opened instead
  -h, --help               this text
";

/// For everything but pulling and importing.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Pieces that may wait to be sent.
const WAITING: usize = 4;
/// Of a name and a password.
const CREDS_MAX: u64 = 64 << 10;

#[derive(Debug, thiserror::Error)]
enum ImagesError {
    #[error(transparent)]
    Runtime(#[from] cri::Error),
    #[error("{act} {}: {error}", .path.display())]
    Archive { act: &'static str, path: PathBuf, error: std::io::Error },
    #[error("--creds: USER:PASSWORD is wanted")]
    Creds,
    #[error("{0}")]
    Offline(String),
    #[error("{0}; or name a runtime with --runtime")]
    NoRuntime(String),
}

pub(crate) fn main(args: &[OsString]) -> ExitCode {
    console::command(args::parse(args), USAGE, |options| {
        let done = console::block_on(run(options))?;
        done.map(|()| ExitCode::SUCCESS).map_err(|error| error.to_string())
    })
}

async fn run(options: Options) -> Result<(), ImagesError> {
    let runtime = match options.place {
        Place::Runtime(runtime) => runtime,
        Place::Usual => usual().map_err(ImagesError::NoRuntime)?,
        Place::Directory(root) => return offline(options.command, root).await,
    };
    let client = Client::new(runtime.clone(), None, TIMEOUT);
    match options.command {
        Command::List { is_quiet } => {
            let images = client.list_images().await?;
            console::out(&if is_quiet { ids(&images) } else { table(&images) });
        }
        Command::Pull { name, creds } => {
            let auth = creds.map(login).transpose()?;
            let image = ImageSpec { image: name, ..ImageSpec::default() };
            let id = client.pull_image(image, auth, None).await?;
            console::out(&format!("{id}\n"));
        }
        Command::Import { paths, pin } => {
            for path in paths {
                let imported = import(&runtime, path, pin).await?;
                imported.iter().for_each(|image| tell_imported(&image.names, &image.id));
            }
        }
        Command::Export { names, path } => export(&runtime, names, path).await?,
        Command::Remove { names } => {
            for name in names {
                let spec = ImageSpec { image: name.clone(), ..ImageSpec::default() };
                match client.image_status(spec.clone()).await? {
                    Some(_) => client.remove_image(spec).await?,
                    None => {
                        return Err(cri::Error::new(
                            "remove image",
                            &name,
                            cri::Code::NotFound,
                            "no such image",
                        )
                        .into());
                    }
                }
                console::out(&format!("{name} removed\n"));
            }
        }
    }
    Ok(())
}

/// The runtime of the node that runs here, else where `longshore runtime` listens.
fn usual() -> Result<Endpoint, String> {
    const ALONE: &str = "/run/longshore/runtime.sock";
    let found = match NodeHere::find(None) {
        Ok(node) => node.runtime_socket,
        Err(_) if Path::new(ALONE).exists() => ALONE.into(),
        Err(error) => return Err(error),
    };
    Endpoint::parse(&format!("unix://{}", found.display())).map_err(|e| e.to_string())
}

/// Gives an archive to the runtime in this program.
pub(crate) fn give(socket: &Path, archive: &Path) -> io::Result<()> {
    let give = async {
        let runtime = Endpoint::parse(&format!("unix://{}", socket.display())).map_err(io::Error::other)?;
        import(&runtime, archive.to_owned(), false).await.map(drop).map_err(io::Error::other)
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(give)
}

/// The disk is waited for on a thread of its own.
async fn offline(command: Command, root: PathBuf) -> Result<(), ImagesError> {
    let work = move || match command {
        Command::List { is_quiet } => {
            let images = offline::list(&root)?;
            console::out(&if is_quiet { ids(&images) } else { table(&images) });
            Ok(())
        }
        Command::Import { paths, pin } => {
            let imported = offline::import(&root, &paths, pin)?;
            imported.iter().for_each(|(names, id)| tell_imported(names, id));
            Ok(())
        }
        _ => Err("--root-dir is for ls and import".to_owned()),
    };
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(error.to_string())).map_err(ImagesError::Offline)
}

fn tell_imported(names: &[String], id: &str) {
    let names = if names.is_empty() { "<none>".to_owned() } else { names.join(" ") };
    console::out(&format!("{names} {id}\n"));
}

fn login(creds: String) -> Result<AuthConfig, ImagesError> {
    let text = match creds.as_str() {
        "-" => {
            let mut text = String::new();
            std::io::stdin().take(CREDS_MAX).read_to_string(&mut text).map_err(|_| ImagesError::Creds)?;
            text
        }
        _ => creds,
    };
    let (username, password) =
        text.trim_end_matches(['\r', '\n']).split_once(':').ok_or(ImagesError::Creds)?;
    Ok(AuthConfig { username: username.into(), password: password.into(), ..AuthConfig::default() })
}

/// The file is read where one may wait for it, a few pieces ahead of what the runtime has taken.
async fn import(
    runtime: &Endpoint,
    path: PathBuf,
    pin: bool,
) -> Result<Vec<cri::archives_v1::Imported>, ImagesError> {
    let (pieces, to_send) = mpsc::channel(WAITING);
    let from = path.clone();
    let reading = tokio::task::spawn_blocking(move || files::send(&from, pin, &pieces));
    let imported = Archives::new(runtime).import(to_send).await;
    match reading.await {
        // What cannot be read is why the runtime found it torn.
        Ok(Err(error)) => Err(ImagesError::Archive { act: "read", path, error }),
        _ => Ok(imported?),
    }
}

async fn export(runtime: &Endpoint, names: Vec<String>, path: PathBuf) -> Result<(), ImagesError> {
    let mut archive = Archives::new(runtime).export(names).await?;
    let (pieces, to_write) = mpsc::channel(WAITING);
    let to = path.clone();
    let writing = tokio::task::spawn_blocking(move || files::receive(&to, to_write));
    let received = async {
        while let Some(piece) = archive.piece().await? {
            // Why nobody takes it is told below.
            if pieces.send(Some(piece)).await.is_err() {
                return Ok(());
            }
        }
        // That was all, and it is whole.
        let _ = pieces.send(None).await;
        Ok(())
    };
    let received: Result<(), cri::Error> = received.await;
    drop(pieces);
    match writing.await {
        Ok(Err(error)) if received.is_ok() => Err(ImagesError::Archive { act: "write", path, error }),
        _ => Ok(received?),
    }
}

fn ids(images: &[Image]) -> String {
    images.iter().map(|image| format!("{}\n", image.id)).collect()
}

fn table(images: &[Image]) -> String {
    let mut rows = vec![["NAME", "ID", "SIZE", ""].map(str::to_owned)];
    for image in images {
        let names = if image.repo_tags.is_empty() { &image.repo_digests } else { &image.repo_tags };
        let id: String = image.id.trim_start_matches("sha256:").chars().take(13).collect();
        let pinned = if image.pinned { "pinned" } else { "" };
        let none = [String::from("<none>")];
        for name in if names.is_empty() { &none[..] } else { names } {
            rows.push([name.clone(), id.clone(), size(image.size), pinned.to_owned()]);
        }
    }
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or_default();
    let (first, second, third) = (width(0), width(1), width(2));
    let line = |[name, id, size, pinned]: &[String; 4]| {
        let line = format!("{name:first$}  {id:second$}  {size:>third$}  {pinned}");
        format!("{}\n", line.trim_end())
    };
    rows.iter().map(line).collect()
}

/// In the units of registries: powers of ten.
fn size(bytes: u64) -> String {
    let units = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    match units.iter().find(|(_, unit)| bytes as f64 >= *unit) {
        Some((name, unit)) => format!("{:.1}{name}", bytes as f64 / unit),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn images_are_shown_under_each_of_their_names() {
        let image = |id: &str, tags: &[&str], size, pinned| Image {
            id: format!("sha256:{id}"),
            repo_tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            size,
            pinned,
            ..Image::default()
        };
        let images = [
            image("0123456789abcdef", &["a/app:v1", "a/application:v1"], 12_345_678, false),
            image("fedcba9876543210", &[], 999, true),
        ];
        let want = "\
NAME              ID               SIZE
a/app:v1          0123456789abc  12.3MB
a/application:v1  0123456789abc  12.3MB
<none>            fedcba9876543    999B  pinned
";
        assert_eq!(table(&images), want);
        assert_eq!(ids(&images), "sha256:0123456789abcdef\nsha256:fedcba9876543210\n");
    }

    #[test]
    fn a_login_has_a_name_and_a_password_that_may_have_colons() {
        let auth = login("ann:s:ecret\n".into()).unwrap();
        assert_eq!((auth.username.as_str(), auth.password.as_str()), ("ann", "s:ecret"));
        assert!(login("ann".into()).is_err());
    }
}
