//! `/logs/?query=`: what a service of the node wrote, from the journal or from its file.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use super::inside::Refusal;
use super::query::Query;
use super::system_logs::{open_below, send};

const SERVICES: usize = 4;
const NAME_MAX: usize = 256;
const TAIL_MAX: i64 = 100_000;
const PATTERN_MAX: usize = 1024;
/// For all of it: who asks for more asks for less at a time.
const PATIENCE: Duration = Duration::from_secs(30);
const PIECE: usize = 32 << 10;

/// What is asked for.
#[derive(Debug, Default, PartialEq)]
struct Asked {
    services: Vec<String>,
    file: Option<String>,
    since: Option<String>,
    until: Option<String>,
    tail: Option<i64>,
    pattern: Option<String>,
    boot: Option<i64>,
}

pub(super) async fn serve(query: &Query, root: &'static Path) -> Result<Response, Refusal> {
    let asked = read(query).map_err(Refusal::bad)?;
    let headers = [(CONTENT_TYPE, "text/plain; charset=utf-8")];
    if let Some(path) = asked.file {
        return Ok((headers, file(root, vec![path]).await?).into_response());
    }
    let known = units().await;
    let (journalled, filed): (Vec<_>, Vec<_>) = asked
        .services
        .iter()
        .cloned()
        .partition(|s| known.lines().any(|unit| unit == format!("{s}.service")));
    if journalled.is_empty() {
        let service = filed.into_iter().next().unwrap_or_default();
        let usual = vec![service.clone(), format!("{service}.log"), format!("{service}/{service}.log")];
        return Ok((headers, file(root, usual).await?).into_response());
    }
    Ok((headers, journal(arguments(&asked, &journalled))?).into_response())
}

/// The first of the paths that is a file.
async fn file(root: &'static Path, paths: Vec<String>) -> Result<Body, Refusal> {
    let missing = format!("no logs found for {:?}\n", paths.first().map_or("", String::as_str));
    let opened = tokio::task::spawn_blocking(move || {
        let open = |path: &String| open_below(root, path.trim_start_matches('/')).map(std::fs::File::from);
        let is_file = |file: &std::fs::File| file.metadata().is_ok_and(|m| m.is_file());
        paths.iter().filter_map(|path| open(path).ok()).find(is_file)
    });
    opened.await.ok().flatten().map(send).ok_or_else(|| Refusal::not_found(missing))
}

async fn units() -> String {
    let list = Command::new("journalctl").args(["--field", "_SYSTEMD_UNIT"]).stdin(Stdio::null()).output();
    match tokio::time::timeout(PATIENCE, list).await {
        Ok(Ok(out)) => String::from_utf8_lossy(&out.stdout).into_owned(),
        _ => String::new(),
    }
}

fn arguments(asked: &Asked, services: &[String]) -> Vec<String> {
    let mut out: Vec<String> =
        ["--utc", "--no-pager", "--output=short-precise"].into_iter().map(str::to_owned).collect();
    let mut option = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            out.push(format!("--{name}={value}"));
        }
    };
    option("since", asked.since.clone());
    option("until", asked.until.clone());
    option("lines", asked.tail.map(|n| n.to_string()));
    option("grep", asked.pattern.clone());
    option("case-sensitive", asked.pattern.as_ref().map(|_| "false".to_owned()));
    option("boot", asked.boot.map(|n| n.to_string()));
    services.iter().for_each(|service| option("unit", Some(service.clone())));
    out
}

/// What journalctl prints, as it prints it; it ends with its reader.
fn journal(arguments: Vec<String>) -> Result<Body, Refusal> {
    let started = Command::new("journalctl")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    let mut child = started.map_err(|e| Refusal::failed(format!("start journalctl: {e}\n")))?;
    let Some(output) = child.stdout.take() else { return Err(Refusal::failed("journalctl has no output\n")) };
    let end = tokio::time::Instant::now() + PATIENCE;
    let pieces = futures_util::stream::unfold((output, child), move |(mut output, child)| async move {
        let mut buffer = BytesMut::with_capacity(PIECE);
        match tokio::time::timeout_at(end, output.read_buf(&mut buffer)).await {
            Ok(Ok(1..)) => Some((Ok::<Bytes, std::io::Error>(buffer.freeze()), (output, child))),
            _ => None,
        }
    });
    Ok(Body::from_stream(pieces))
}

fn read(query: &Query) -> Result<Asked, String> {
    let mut asked = Asked::default();
    for name in query.all("query").filter(|n| !n.is_empty()) {
        match name.contains(['/', '\\']) {
            true => asked.file = Some(name.to_owned()),
            false => asked.services.push(name.to_owned()),
        }
    }
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
    if asked.services.len() > SERVICES {
        return Err(format!("query: Too many: {}: must have at most {SERVICES} items", asked.services.len()));
    }
    if asked.file.is_some() && !asked.services.is_empty() || asked.file.is_none() && asked.services.is_empty()
    {
        return Err("query: Invalid value: either services or one file must be asked for".to_owned());
    }
    if let Some(bad) =
        asked.services.iter().find(|s| s.len() > NAME_MAX || !s.chars().all(safe) || s.starts_with('-'))
    {
        return Err(format!("query: Invalid value: {bad:?}: input contains unsupported characters"));
    }
    let time = |name: &str| match query.get(name).filter(|t| !t.is_empty()) {
        None => Ok(None),
        Some(text) => match text.parse::<jiff::Timestamp>() {
            Ok(time) => Ok(Some(time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())),
            Err(_) => Err(format!("{name}: Invalid value: {text:?}: invalid time format")),
        },
    };
    let number =
        |name: &str, range: std::ops::RangeInclusive<i64>| match query.get(name).filter(|t| !t.is_empty()) {
            None => Ok(None),
            Some(text) => match text.parse::<i64>() {
                Ok(n) if range.contains(&n) => Ok(Some(n)),
                _ => Err(format!("{name}: Invalid value: {text:?}")),
            },
        };
    asked.since = time("sinceTime")?;
    asked.until = time("untilTime")?;
    asked.tail = number("tailLines", 0..=TAIL_MAX)?;
    asked.boot = number("boot", i64::from(i32::MIN)..=0)?;
    asked.pattern = query.get("pattern").filter(|p| !p.is_empty()).map(str::to_owned);
    if asked.pattern.as_ref().is_some_and(|p| p.len() > PATTERN_MAX) {
        return Err("pattern: Too long".to_owned());
    }
    Ok(asked)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_reaches_the_journal_is_checked() {
        let ask = |text: &str| read(&Query::parse(Some(text)));
        let asked = ask(
            "query=kubelet&query=containerd&tailLines=10&boot=-1&pattern=a+b&sinceTime=2026-01-01T01:00:00%2B01:00",
        );
        let arguments = arguments(&asked.unwrap(), &["kubelet".to_owned()]);
        let expected = "--utc --no-pager --output=short-precise --since=2026-01-01 00:00:00 UTC --lines=10 --grep=a b \
                        --case-sensitive=false --boot=-1 --unit=kubelet";
        assert_eq!(arguments.join(" "), expected);
        for bad in [
            "",
            "query=",
            "query=a&query=b&query=c&query=d&query=e",
            "query=a&query=/b",
            "query=--root%3D",
            "query=--help",
            "query=a%20b",
            "query=a&tailLines=-1",
            "query=a&tailLines=100001",
            "query=a&boot=1",
            "query=a&sinceTime=now",
        ] {
            assert!(ask(bad).is_err(), "{bad}");
        }
        assert_eq!(ask("query=/a.log").unwrap().file.as_deref(), Some("/a.log"));
    }
}
