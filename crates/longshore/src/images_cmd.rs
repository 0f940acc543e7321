//! `longshore images …`: the images of this machine's container runtime, no kubelet needed.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use cri::archives_v1::ImportRequest;
use cri::v1::{AuthConfig, Image, ImageSpec};
use cri::{Archives, Client, Endpoint};
use tokio::sync::mpsc;

use crate::console;

mod args;

use args::{Command, Options};

pub(crate) const USAGE: &str = "\
See, bring and remove the images of this machine's container runtime.

Usage:
  longshore images ls [-q]
  longshore images pull NAME [--creds USER:PASSWORD]
  longshore images import FILE|- [--pin]
  longshore images export NAME... -o FILE|-
  longshore images rm NAME...

ls: names, id and size; -q the ids alone.
pull: from its registry, as the runtime is set up for it. USER:PASSWORD may be - to be read from standard input.
import: an archive in the layout of OCI, or of `docker save`, packed or not. --pin keeps the kubelet from collecting its images.
export: an archive in the layout of OCI, for import here and elsewhere. Layers are archived anew: digests are others, content is the same.
rm: by any name; all other names of the image go with it.

Flags:
      --runtime ENDPOINT   default unix:///run/longshore/runtime.sock; import and export need `longshore runtime` there
  -h, --help               this text
";

/// For everything but pulling and importing.
const TIMEOUT: Duration = Duration::from_secs(120);
/// What is sent of an archive at once; less than a message of gRPC may have.
const PIECE: usize = 1 << 20;
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
}

pub(crate) fn main(args: &[OsString]) -> ExitCode {
    let options = match args::parse(args) {
        Ok(Some(options)) => options,
        Ok(None) => {
            console::out(USAGE);
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            console::err(&format!("error: {message}\n\n{USAGE}"));
            return ExitCode::FAILURE;
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = runtime
        .map_err(|error| error.to_string())
        .and_then(|runtime| runtime.block_on(run(options)).map_err(|error| error.to_string()));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            console::err(&format!("error: {message}\n"));
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<(), ImagesError> {
    let client = Client::new(options.runtime.clone(), None, TIMEOUT);
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
        Command::Import { path, pin } => {
            for image in import(&options.runtime, path, pin).await? {
                let names = if image.names.is_empty() { "<none>".to_owned() } else { image.names.join(" ") };
                console::out(&format!("{names} {}\n", image.id));
            }
        }
        Command::Export { names, path } => export(&options.runtime, names, path).await?,
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
    let failed = |error| ImagesError::Archive { act: "read", path: path.clone(), error };
    let mut from: Box<dyn Read + Send> = match path.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => Box::new(std::fs::File::open(&path).map_err(failed)?),
    };
    let read = tokio::task::spawn_blocking(move || -> std::io::Result<()> {
        loop {
            let mut data = vec![0; PIECE];
            let n = from.read(&mut data)?;
            data.truncate(n);
            if n == 0 || pieces.blocking_send(ImportRequest { data, pin }).is_err() {
                return Ok(());
            }
        }
    });
    let imported = Archives::new(runtime).import(to_send).await;
    // What cannot be read is why the runtime found it torn.
    match read.await {
        Ok(Err(error)) => Err(failed(error)),
        _ => Ok(imported?),
    }
}

/// Beside its place until it is whole.
async fn export(runtime: &Endpoint, names: Vec<String>, path: PathBuf) -> Result<(), ImagesError> {
    let failed = |error| ImagesError::Archive { act: "write", path: path.clone(), error };
    let mut archive = Archives::new(runtime).export(names).await?;
    let is_stdout = path.as_os_str() == "-";
    let half = path.with_added_extension("part");
    let mut out: Box<dyn Write> = match is_stdout {
        true => Box::new(std::io::stdout().lock()),
        false => Box::new(std::fs::File::create(&half).map_err(failed)?),
    };
    loop {
        let piece = match archive.piece().await {
            Ok(Some(piece)) => out.write_all(&piece).map_err(failed),
            Ok(None) => break,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = piece {
            if !is_stdout {
                // The error is the news.
                let _ = std::fs::remove_file(&half);
            }
            return Err(error);
        }
    }
    out.flush().map_err(failed)?;
    if is_stdout { Ok(()) } else { std::fs::rename(&half, &path).map_err(failed) }
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
