//! `/logs/`: the files of the node's log directory, and what its services wrote.
//!
//! Pods may be able to write below /var/log. Every file is therefore opened relative to a descriptor of that directory,
//! with symlinks refused: nobody reads anything else of the node through them.

use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, LOCATION};
use http::{StatusCode, Uri};
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags};
use tokio::sync::mpsc;

use super::inside::{Inside, Refusal};
use super::query::Query;
use super::{journal, percent};

const ROOT: &str = "/var/log";
/// Bytes read in one step, and steps that may wait for a slow reader.
const PIECE: usize = 64 << 10;
const QUEUE: usize = 4;
/// Entries of a listing.
const ENTRIES: usize = 10_000;

/// What a path leads to.
enum Place {
    File(File),
    Directory(String),
}

pub(super) async fn serve(State(inside): State<Inside>, uri: Uri, RawQuery(query): RawQuery) -> Response {
    let query = Query::parse(query.as_deref());
    if inside.switches.system_log_query && query.get("query").is_some() {
        return journal::serve(&query, Path::new(ROOT)).await.unwrap_or_else(Refusal::into_response);
    }
    if !inside.switches.system_log_query && query.get("query").is_some() {
        return Refusal::bad("enableSystemLogQuery is off\n").into_response();
    }
    let path = uri.path().strip_prefix("/logs").unwrap_or_default().to_owned();
    show(ROOT.as_ref(), path).await.unwrap_or_else(Refusal::into_response)
}

async fn show(root: &'static Path, path: String) -> Result<Response, Refusal> {
    let decoded = percent::decode(path.trim_start_matches('/'));
    let decoded = decoded.ok_or_else(|| Refusal::bad("invalid URL path\n"))?;
    let place = tokio::task::spawn_blocking(move || open(root, &decoded)).await.map_err(io::Error::other);
    match place.and_then(|place| place) {
        Ok(Place::Directory(_)) if !path.ends_with('/') => {
            // So that the links in the listing lead somewhere.
            let last = path.rsplit('/').next().filter(|l| !l.is_empty()).unwrap_or("logs");
            Ok((StatusCode::MOVED_PERMANENTLY, [(LOCATION, format!("{last}/"))]).into_response())
        }
        Ok(Place::Directory(listing)) => {
            Ok(([(CONTENT_TYPE, "text/html; charset=utf-8")], listing).into_response())
        }
        Ok(Place::File(file)) => {
            Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8")], send(file)).into_response())
        }
        Err(error) => Err(refusal(&error)),
    }
}

fn refusal(error: &io::Error) -> Refusal {
    let raw = rustix::io::Errno::from_io_error(error);
    match raw {
        Some(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR | rustix::io::Errno::NAMETOOLONG) => {
            Refusal::not_found("404 page not found\n")
        }
        Some(rustix::io::Errno::LOOP | rustix::io::Errno::XDEV) => {
            Refusal(StatusCode::FORBIDDEN, "symbolic links are not followed\n".to_owned())
        }
        _ if error.kind() == io::ErrorKind::PermissionDenied => {
            Refusal(StatusCode::FORBIDDEN, "403 Forbidden\n".to_owned())
        }
        _ => Refusal::failed("500 Internal Server Error\n"),
    }
}

/// Opens what `path` names below `root`; anything but files and directories is not there.
fn open(root: &Path, path: &str) -> io::Result<Place> {
    let file = open_below(root, path)?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
    match kind {
        FileType::Directory => list(&file).map(Place::Directory),
        FileType::RegularFile => Ok(Place::File(File::from(file))),
        _ => Err(rustix::io::Errno::NOENT.into()),
    }
}

/// Opens without waiting for anybody, as a pipe would make us.
pub(super) fn open_below(root: &Path, path: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let root = rustix::fs::open(root, OFlags::DIRECTORY | flags, Mode::empty())?;
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let path = if path.is_empty() { "." } else { path };
    Ok(rustix::fs::openat2(root, path, flags, Mode::empty(), inside)?)
}

fn list(directory: &OwnedFd) -> io::Result<String> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)?.take(ENTRIES) {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            let slash = if entry.file_type() == FileType::Directory { "/" } else { "" };
            names.push(format!("{name}{slash}"));
        }
    }
    names.sort_unstable();
    let mut page =
        String::from("<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n");
    for name in names {
        let _ = writeln!(page, "<a href=\"{}\">{}</a>", percent::encode(&name), escape(&name));
    }
    page.push_str("</pre>\n");
    Ok(page)
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// The file as it is now, piece by piece as the reader takes them.
pub(super) fn send(mut file: File) -> Body {
    let (sender, receiver) = mpsc::channel::<io::Result<Bytes>>(QUEUE);
    tokio::task::spawn_blocking(move || {
        let mut buffer = vec![0; PIECE];
        loop {
            let piece = match file.read(&mut buffer) {
                Ok(0) => return,
                Ok(n) => Ok(Bytes::copy_from_slice(&buffer[..n])),
                Err(error) => Err(error),
            };
            let broken = piece.is_err();
            if sender.blocking_send(piece).is_err() || broken {
                return;
            }
        }
    });
    let pieces =
        futures_util::stream::unfold(receiver, |mut r| async move { r.recv().await.map(|p| (p, r)) });
    Body::from_stream(pieces)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_is_reached() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("log");
        std::fs::create_dir_all(root.join("sub")).unwrap();
        std::fs::write(dir.path().join("secret"), "s").unwrap();
        std::fs::write(root.join("a&b <c>"), "x").unwrap();
        std::os::unix::fs::symlink("../secret", root.join("link")).unwrap();
        std::os::unix::fs::symlink("/etc", root.join("sub/etc")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, root.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        for path in [
            "link",
            "sub/etc/passwd",
            "../secret",
            "sub/../../secret",
            "/etc/passwd",
            "nothing",
            "pipe",
            "a&b <c>/x",
        ] {
            assert!(open(&root, path).is_err(), "{path}");
        }
        assert!(matches!(open(&root, "sub"), Ok(Place::Directory(_))));
        assert!(matches!(open(&root, "sub/../a&b <c>"), Ok(Place::File(_))));
        let Ok(Place::Directory(page)) = open(&root, "") else { panic!("no listing") };
        assert!(page.contains("<a href=\"a%26b%20%3Cc%3E\">a&amp;b &lt;c&gt;</a>"), "{page}");
        assert!(page.contains("<a href=\"sub/\">sub/</a>"), "{page}");
    }

    #[test]
    fn names_cannot_be_markup() {
        assert_eq!(escape("<'\"&>"), "&lt;&#39;&#34;&amp;&gt;");
    }
}
