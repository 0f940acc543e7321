//! `/logs/`: the files of the node's log directory, and what its services wrote.
//!
//! Pods may be able to write below /var/log. Every file is therefore opened relative to a descriptor of that directory,
//! and symlinks are followed only where they stay below it, as those to the logs of containers do: nobody reads anything
//! else of the node through them.

use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::Path;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, LAST_MODIFIED, LOCATION, RANGE,
};
use http::{HeaderMap, StatusCode, Uri};
use rustix::fs::{Dir, FileType};
use rustix::io::Errno;

use super::log_files::{open_below, pieces};
use super::query::Query;
use super::state::{HttpError, ServerState};
use super::{journal, percent};

const ROOT: &str = "/var/log";
/// Entries of a listing.
const ENTRIES: usize = 10_000;

/// What a path leads to.
enum Place {
    File(File),
    Directory(String),
}

pub(super) async fn serve(
    State(state): State<ServerState>,
    uri: Uri,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let path = uri.path().strip_prefix("/logs").unwrap_or_default().to_owned();
    let answer = async {
        let asked = match state.switches.system_log_query {
            true => journal::read(&Query::parse(query.as_deref()))?,
            false => None,
        };
        let Some(asked) = asked else { return show(ROOT.as_ref(), path, &headers).await };
        if !matches!(path.as_str(), "" | "/") {
            return Err(HttpError(StatusCode::NOT_ACCEPTABLE, "path not allowed in query mode\n".to_owned()));
        }
        asked.check()?;
        match asked.file() {
            Some(file) => show(ROOT.as_ref(), percent::encode(&file), &headers).await,
            None => Ok(asked.answer(ROOT.as_ref())),
        }
    };
    answer.await.unwrap_or_else(HttpError::into_response)
}

async fn show(root: &'static Path, path: String, headers: &HeaderMap) -> Result<Response, HttpError> {
    let decoded = percent::decode(path.trim_start_matches('/'));
    let decoded = decoded.ok_or_else(|| HttpError::bad("invalid URL path\n"))?;
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
        Ok(Place::File(file)) => part(file, headers).map_err(|e| http_error(&e)),
        Err(error) => Err(http_error(&error)),
    }
}

/// The file, or the one range of it that is asked for.
fn part(mut file: File, headers: &HeaderMap) -> io::Result<Response> {
    let about = file.metadata()?;
    let changed = about.modified().ok().and_then(|t| jiff::Timestamp::try_from(t).ok()).unwrap_or_default();
    let changed = changed.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let usual = [
        (CONTENT_TYPE, "text/plain; charset=utf-8".to_owned()),
        (ACCEPT_RANGES, "bytes".to_owned()),
        (LAST_MODIFIED, changed),
    ];
    let asked = headers.get(RANGE).and_then(|v| v.to_str().ok());
    match asked.map_or(Range::All, |text| range(text, about.len())) {
        Range::All => Ok((usual, send(file)).into_response()),
        Range::None => {
            let whole = [(CONTENT_RANGE, format!("bytes */{}", about.len()))];
            Ok((StatusCode::RANGE_NOT_SATISFIABLE, whole, "invalid range\n").into_response())
        }
        Range::Some { from, length } => {
            file.seek(SeekFrom::Start(from))?;
            let which = format!("bytes {from}-{}/{}", from + length - 1, about.len());
            let length_header = [(CONTENT_LENGTH, length.to_string())];
            let headers = (usual, [(CONTENT_RANGE, which)], length_header);
            Ok((StatusCode::PARTIAL_CONTENT, headers, send(file.take(length))).into_response())
        }
    }
}

#[derive(Debug, PartialEq)]
enum Range {
    All,
    None,
    Some { from: u64, length: u64 },
}

/// One range of bytes. Several, or what is none, mean all of it.
fn range(text: &str, size: u64) -> Range {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let Some((from, to)) = text.strip_prefix("bytes=").and_then(|t| t.split_once('-')) else {
        return Range::All;
    };
    let (from, to) = match (from.trim(), to.trim()) {
        ("", last) => match number(last) {
            Some(last) => (size.saturating_sub(last), size),
            None => return Range::All,
        },
        (from, "") => match number(from) {
            Some(from) => (from, size),
            None => return Range::All,
        },
        (from, to) => match (number(from), number(to)) {
            (Some(from), Some(to)) if from <= to => (from, size.min(to.saturating_add(1))),
            _ => return Range::All,
        },
    };
    if from < to { Range::Some { from, length: to - from } } else { Range::None }
}

fn http_error(error: &io::Error) -> HttpError {
    let raw = Errno::from_io_error(error);
    match raw {
        Some(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => {
            HttpError::not_found("404 page not found\n")
        }
        Some(Errno::LOOP | Errno::XDEV) => {
            let text = format!("symbolic links are followed below {ROOT} only\n");
            HttpError(StatusCode::FORBIDDEN, text)
        }
        _ if error.kind() == io::ErrorKind::PermissionDenied => {
            HttpError(StatusCode::FORBIDDEN, "403 Forbidden\n".to_owned())
        }
        _ => HttpError::failed("500 Internal Server Error\n"),
    }
}

/// Opens what `path` names below `root`; anything but files and directories is not there.
fn open(root: &Path, path: &str) -> io::Result<Place> {
    let file = open_below(root, path)?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
    match kind {
        FileType::Directory => list(&file).map(Place::Directory),
        FileType::RegularFile => Ok(Place::File(File::from(file))),
        _ => Err(Errno::NOENT.into()),
    }
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
fn send(file: impl Read + Send + 'static) -> Body {
    Body::from_stream(pieces(file))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use futures_util::StreamExt;
    use rustix::fs::Mode;

    #[test]
    fn nothing_outside_is_reached() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("log");
        std::fs::create_dir_all(root.join("sub")).unwrap();
        std::fs::write(dir.path().join("secret"), "s").unwrap();
        std::fs::write(root.join("a&b <c>"), "x").unwrap();
        std::os::unix::fs::symlink("../secret", root.join("link")).unwrap();
        std::os::unix::fs::symlink("/etc", root.join("sub/etc")).unwrap();
        std::os::unix::fs::symlink("../a&b <c>", root.join("sub/near")).unwrap();
        std::os::unix::fs::symlink(root.join("a&b <c>"), root.join("sub/absolute")).unwrap();
        std::os::unix::fs::symlink(root.join("sub/etc/passwd"), root.join("far")).unwrap();
        std::os::unix::fs::symlink("/proc/self/root/etc", root.join("magic")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, root.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        for path in [
            "link",
            "sub/etc/passwd",
            "far",
            "magic",
            "magic/passwd",
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
        for inside in ["sub/../a&b <c>", "sub/near", "sub/absolute"] {
            assert!(matches!(open(&root, inside), Ok(Place::File(_))), "{inside}");
        }
        let Ok(Place::Directory(page)) = open(&root, "") else { panic!("no listing") };
        assert!(page.contains("<a href=\"a%26b%20%3Cc%3E\">a&amp;b &lt;c&gt;</a>"), "{page}");
        assert!(page.contains("<a href=\"sub/\">sub/</a>"), "{page}");
    }

    #[test]
    fn one_range_is_served() {
        let some = |from, length| Range::Some { from, length };
        let rows = [
            ("bytes=0-9", some(0, 10)),
            ("bytes=90-", some(90, 10)),
            ("bytes=-7", some(93, 7)),
            ("bytes=-700", some(0, 100)),
            ("bytes=5-18446744073709551615", some(5, 95)),
            ("bytes=100-", Range::None),
            ("bytes=-0", Range::None),
            ("bytes=9-0", Range::All),
            ("bytes=0-1,5-6", Range::All),
            ("lines=1-2", Range::All),
        ];
        for (text, expected) in rows {
            assert_eq!(range(text, 100), expected, "{text}");
        }
    }

    #[test]
    fn readers_that_wait_keep_no_thread() {
        let one_thread = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        let dir = Box::leak(Box::new(tempfile::tempdir().unwrap()));
        let root: &'static Path = dir.path();
        std::fs::write(root.join("long.log"), vec![b'x'; 1 << 20]).unwrap();
        let (direct, queried) = one_thread.block_on(async {
            let direct = show(root, "/long.log".to_owned(), &HeaderMap::new()).await.unwrap();
            let asked = journal::read(&Query::parse(Some("query=long"))).unwrap().unwrap();
            let mut queried = asked.answer(root).into_body().into_data_stream();
            // It is on its way.
            let first = queried.next().await.unwrap().unwrap();
            for _ in 0..20 {
                let other =
                    tokio::task::spawn_blocking(|| std::thread::sleep(std::time::Duration::from_millis(2)));
                let other = tokio::time::timeout(std::time::Duration::from_secs(20), other).await;
                other.expect("somebody holds the thread").unwrap();
            }
            let direct = axum::body::to_bytes(direct.into_body(), 2 << 20).await.unwrap();
            let mut length = first.len();
            while let Some(piece) = queried.next().await {
                length += piece.unwrap().len();
            }
            (direct.len(), length)
        });
        // Where it fails, the runtime would wait for its thread.
        one_thread.shutdown_background();
        assert_eq!((direct, queried), (1 << 20, 1 << 20));
    }

    #[test]
    fn names_cannot_be_markup() {
        assert_eq!(escape("<'\"&>"), "&lt;&#39;&#34;&amp;&gt;");
    }
}
