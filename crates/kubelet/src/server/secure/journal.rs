//! `/logs/?query=`: what services of the node wrote, from the journal or from their files.
//!
//! Nothing here goes through a shell, and a name that could be taken for an option is refused.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::sync::Semaphore;

use super::log_files::{self, Pieces, open_below};
use super::query::Query;
use super::state::HttpError;

const SERVICES: usize = 4;
const NAME_MAX: usize = 256;
const TAIL_MAX: i64 = 100_000;
const PATTERN_MAX: usize = 1024;
/// For all of it: who asks for more asks for less at a time.
const TIMEOUT: Duration = Duration::from_secs(30);
const PIECE: usize = 32 << 10;
/// Programs that search the journal at once: a pattern may be made to cost much.
const AT_ONCE: usize = 16;
static PLACES: Semaphore = Semaphore::const_new(AT_ONCE);

/// What is asked for.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Asked {
    services: Vec<String>,
    files: Vec<String>,
    options: Options,
}

#[derive(Debug, Default, PartialEq)]
struct Options {
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    tail: Option<i64>,
    boot: Option<i64>,
    pattern: Option<String>,
}

/// Reads the parameters; none where there are none, and a file or a listing is meant.
pub(super) fn read(query: &Query) -> Result<Option<Asked>, HttpError> {
    let (mut asked, mut wrong) = (Asked::default(), Vec::new());
    let names: Vec<&str> = query.all("query").collect();
    for name in &names {
        // A slash is a hint at a file; a file without one is found as well.
        if name.contains(['/', '\\']) {
            asked.files.push((*name).to_owned());
        } else if !name.trim().is_empty() {
            asked.services.push((*name).to_owned());
        }
    }
    if !names.is_empty() && asked.files.is_empty() && asked.services.is_empty() {
        wrong.push(format!("query: Invalid value: {}: may not be empty", list(&names)));
    }
    let value = |name: &str| query.get(name).filter(|v| !v.is_empty());
    let mut time = |name: &str| {
        let text = value(name)?;
        let time = text.parse::<Timestamp>();
        time.map_err(|_| wrong.push(format!("{name}: Invalid value: {text:?}: invalid time format"))).ok()
    };
    let (since, until) = (time("sinceTime"), time("untilTime"));
    let mut number = |name: &str| {
        let text = value(name)?;
        let why =
            |()| format!("{name}: Invalid value: {text:?}: strconv.Atoi: parsing {text:?}: invalid syntax");
        text.parse::<i64>().map_err(|_| wrong.push(why(()))).ok()
    };
    let (boot, tail) = (number("boot"), number("tailLines"));
    asked.options = Options { since, until, tail, boot, pattern: value("pattern").map(str::to_owned) };
    if !wrong.is_empty() {
        return Err(refuse(StatusCode::BAD_REQUEST, &wrong));
    }
    Ok((asked != Asked::default()).then_some(asked))
}

fn refuse(status: StatusCode, wrong: &[String]) -> HttpError {
    let text = match wrong {
        [one] => format!("{one}\n"),
        several => format!("[{}]\n", several.join(", ")),
    };
    HttpError(status, text)
}

/// As upstream prints a list of words.
fn list(words: &[impl AsRef<str>]) -> String {
    let words: Vec<String> = words.iter().map(|w| format!("{:?}", w.as_ref())).collect();
    format!("[{}]", words.join(","))
}

// === impl Asked ===

impl Asked {
    /// The file that is meant; none where services are.
    pub(super) fn file(&self) -> Option<String> {
        let file = self.files.first()?;
        Some(file.replace('\\', "/").trim_start_matches('/').to_owned())
    }

    /// Refuses what makes no sense, with everything that is wrong with it.
    pub(super) fn check(&self) -> Result<(), HttpError> {
        let mut wrong: Vec<String> = self.services.iter().filter_map(|s| unsafe_name(s)).collect();
        let Options { since, until, tail, boot, pattern } = &self.options;
        if self.services.len() > SERVICES {
            let count = self.services.len();
            wrong.push(format!("query: Too many: {count}: must have at most {SERVICES} items"));
        }
        match (self.files.as_slice(), self.services.as_slice()) {
            ([], []) => wrong.push("query: Required value: cannot be empty with options".to_owned()),
            ([_, ..], [_, ..]) => {
                let both = format!("[{}], [{}]", self.files.join(" "), self.services.join(" "));
                wrong.push(format!("query: Invalid value: {both:?}: cannot specify a file and service"));
            }
            ([_, _, ..], []) => {
                let files = list(&self.files);
                wrong.push(format!("query: Invalid value: {files}: cannot specify more than one file"));
            }
            ([_], []) if self.options != Options::default() => {
                let files = list(&self.files);
                wrong.push(format!("query: Invalid value: {files}: cannot specify file with options"));
            }
            _ => {}
        }
        if let (Some(since), Some(until)) = (since, until)
            && since > until
        {
            let until = until.to_string();
            wrong.push(format!("untilTime: Invalid value: {until:?}: must be after `sinceTime`"));
        }
        if let Some(boot) = boot.filter(|b| *b > 0) {
            wrong.push(format!("boot: Invalid value: {boot}: must be less than 1"));
        }
        if let Some(tail) = tail.filter(|t| !(0..=TAIL_MAX).contains(t)) {
            let range = format!("must be between 0 and {TAIL_MAX}, inclusive");
            wrong.push(format!("tailLines: Invalid value: {tail}: {range}"));
        }
        if pattern.as_ref().is_some_and(|p| p.len() > PATTERN_MAX) {
            wrong.push(format!("pattern: Too long: may not be more than {PATTERN_MAX} bytes"));
        }
        if wrong.is_empty() { Ok(()) } else { Err(refuse(StatusCode::NOT_ACCEPTABLE, &wrong)) }
    }

    /// What the services wrote. What cannot be had is said in the text: others may have been found.
    pub(super) fn answer(self, root: &'static Path) -> Response {
        let Ok(place) = PLACES.try_acquire() else {
            let text = format!("{AT_ONCE} queries of logs are under way on this node\n");
            return HttpError(StatusCode::TOO_MANY_REQUESTS, text).into_response();
        };
        let (pieces, body) = log_files::channel();
        supervise::spawn("log_query", async move {
            let copying = tokio::time::timeout(TIMEOUT, self.copy(root, &pieces));
            // A search that finds nothing writes nothing: only this tells that nobody waits for it any more.
            tokio::select! {
                _ = copying => {}
                () = pieces.closed() => {}
            }
            drop(place);
        });
        ([(CONTENT_TYPE, "text/plain;charset=UTF-8")], Body::from_stream(body)).into_response()
    }

    /// None when nobody reads any more.
    async fn copy(self, root: &'static Path, to: &Pieces) -> Option<()> {
        let known = units().await;
        let is_known = |s: &String| known.lines().any(|unit| unit == format!("{s}.service"));
        let (journalled, filed): (Vec<_>, Vec<_>) = self.services.into_iter().partition(is_known);
        if !journalled.is_empty() {
            journal(arguments(&self.options, &journalled), to).await?;
        }
        if !filed.is_empty() && self.options != Options::default() {
            let names = filed.join(" ");
            let text = format!("\noptions present and query resolved to log files for [{names}]\n");
            return say(to, text + "try without specifying options\n").await;
        }
        for service in filed {
            copy_file(root, &service, to).await?;
        }
        Some(())
    }
}

fn unsafe_name(service: &str) -> Option<String> {
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
    let why = if service.len() > NAME_MAX {
        format!("length must be less than {NAME_MAX}")
    } else if !service.chars().all(safe) || service.starts_with('-') {
        "input contains unsupported characters".to_owned()
    } else {
        return None;
    };
    Some(format!("query: Invalid value: {service:?}: {why}"))
}

/// The units that the journal has heard of, a line each.
async fn units() -> String {
    let list = Command::new("journalctl")
        .args(["--field", "_SYSTEMD_UNIT"])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let out = list.await.map(|out| out.stdout).unwrap_or_default();
    String::from_utf8_lossy(&out).into_owned()
}

fn arguments(options: &Options, services: &[String]) -> Vec<String> {
    let mut out: Vec<String> =
        ["--utc", "--no-pager", "--output=short-precise"].into_iter().map(str::to_owned).collect();
    let mut option = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            out.push(format!("--{name}={value}"));
        }
    };
    let moment = |t: &Timestamp| t.strftime("%Y-%m-%d %H:%M:%S UTC").to_string();
    option("since", options.since.as_ref().map(moment));
    option("until", options.until.as_ref().map(moment));
    option("lines", options.tail.map(|n| n.to_string()));
    services.iter().for_each(|service| option("unit", Some(service.clone())));
    option("grep", options.pattern.clone());
    option("boot", options.boot.map(|n| n.to_string()));
    out
}

/// What journalctl prints, as it prints it; it ends with its reader.
async fn journal(arguments: Vec<String>, to: &Pieces) -> Option<()> {
    let started = Command::new("journalctl")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let Ok(mut child) = started else {
        return say(to, "\nerror: journal output not available\n".into()).await;
    };
    let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) else { return Some(()) };
    let (output, errors) = tokio::join!(forward(output, to), forward(errors, to));
    output.and(errors)
}

async fn forward(mut from: impl AsyncRead + Unpin, to: &Pieces) -> Option<()> {
    loop {
        let mut buffer = BytesMut::with_capacity(PIECE);
        match from.read_buf(&mut buffer).await {
            Ok(1..) => to.send(Ok(buffer.freeze())).await.ok()?,
            _ => return Some(()),
        }
    }
}

async fn say(to: &Pieces, text: String) -> Option<()> {
    to.send(Ok(Bytes::from(text))).await.ok()
}

/// The file of a service, where such files are: the first that is there.
async fn copy_file(root: &'static Path, service: &str, to: &Pieces) -> Option<()> {
    let usual = [service.to_owned(), format!("{service}.log"), format!("{service}/{service}.log")];
    let found = tokio::task::spawn_blocking(move || {
        let open = |path: &String| open_below(root, path).map(std::fs::File::from);
        let is_file = |file: &std::fs::File| file.metadata().is_ok_and(|m| m.is_file());
        usual.iter().filter_map(|path| open(path).ok()).find(is_file)
    });
    match found.await.ok().flatten() {
        Some(file) => log_files::copy(file, to).await.then_some(()),
        None => say(to, format!("\nlog not found for {service}\n")).await,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn ask(text: &str) -> Result<Option<Asked>, (u16, String)> {
        let asked = read(&Query::parse(Some(text))).and_then(|asked| {
            asked.as_ref().map_or(Ok(()), Asked::check)?;
            Ok(asked)
        });
        asked.map_err(|r| (r.0.as_u16(), r.1))
    }

    #[test]
    fn what_reaches_the_journal_is_checked() {
        let asked = ask(
            "query=kubelet&query=containerd&tailLines=10&boot=-1&pattern=a+b&sinceTime=2026-01-01T01:00:00%2B01:00",
        );
        let arguments = arguments(&asked.unwrap().unwrap().options, &["kubelet".to_owned()]);
        let expected = "--utc --no-pager --output=short-precise --since=2026-01-01 00:00:00 UTC --lines=10 \
                        --unit=kubelet --grep=a b --boot=-1";
        assert_eq!(arguments.join(" "), expected);
        let rows = [
            ("query=", 400, "query: Invalid value: [\"\"]: may not be empty\n"),
            (
                "query=a&tailLines=x",
                400,
                "tailLines: Invalid value: \"x\": strconv.Atoi: parsing \"x\": invalid syntax\n",
            ),
            ("query=a&sinceTime=now", 400, "sinceTime: Invalid value: \"now\": invalid time format\n"),
            ("query=a&boot=5", 406, "boot: Invalid value: 5: must be less than 1\n"),
            (
                "query=a&tailLines=-1",
                406,
                "tailLines: Invalid value: -1: must be between 0 and 100000, inclusive\n",
            ),
            ("tailLines=5", 406, "query: Required value: cannot be empty with options\n"),
            (
                "query=a&query=b&query=c&query=d&query=e",
                406,
                "query: Too many: 5: must have at most 4 items\n",
            ),
            (
                "query=a&query=/b",
                406,
                "query: Invalid value: \"[/b], [a]\": cannot specify a file and service\n",
            ),
            (
                "query=/a&query=/b",
                406,
                "query: Invalid value: [\"/a\",\"/b\"]: cannot specify more than one file\n",
            ),
            (
                "query=/a&tailLines=1",
                406,
                "query: Invalid value: [\"/a\"]: cannot specify file with options\n",
            ),
            ("query=a%20b", 406, "query: Invalid value: \"a b\": input contains unsupported characters\n"),
            (
                "query=--help",
                406,
                "query: Invalid value: \"--help\": input contains unsupported characters\n",
            ),
            (
                "query=--root%3D&boot=1",
                406,
                "[query: Invalid value: \"--root=\": input contains unsupported characters, boot: Invalid value: 1: must \
                 be less than 1]\n",
            ),
        ];
        for (text, status, message) in rows {
            assert_eq!(ask(text), Err((status, message.to_owned())), "{text}");
        }
        assert_eq!(ask("").unwrap(), None);
        assert_eq!(ask("other=1").unwrap(), None);
        assert_eq!(ask("query=/a%5Cb.log").unwrap().unwrap().file().as_deref(), Some("a/b.log"));
    }

    #[tokio::test]
    async fn files_are_found_where_services_put_them() {
        let dir = Box::leak(Box::new(tempfile::tempdir().unwrap()));
        let root: &'static Path = dir.path();
        std::fs::create_dir(root.join("here-b")).unwrap();
        std::fs::write(root.join("here-a.log"), "of a\n").unwrap();
        std::fs::write(root.join("here-b/here-b.log"), "of b\n").unwrap();
        let all = |text: &'static str| async move {
            let body = ask(text).unwrap().unwrap().answer(root).into_body();
            let bytes = axum::body::to_bytes(body, 1 << 20).await.unwrap();
            String::from_utf8(bytes.to_vec()).unwrap()
        };
        let text = all("query=here-a&query=here-b&query=here-a.log&query=here-c").await;
        assert_eq!(text, "of a\nof b\nof a\n\nlog not found for here-c\n");
        let text = all("query=here-a&tailLines=1").await;
        assert!(text.ends_with("log files for [here-a]\ntry without specifying options\n"), "{text}");
    }
}
