//! Log lines in the shapes that log shippers for upstream's components already parse.
//!
//! Text: `I1115 21:30:00.123456    1234 file.rs:12] "message" key="value"`. JSON: one object per line
//! with `ts` (milliseconds), `caller`, `msg`, `v` and the fields. Each line is written with one call as it comes,
//! so there is nothing to flush.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use api::config::{Logging, VModule};
use base::verbosity::Verbosity;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;

/// Verbosity from which `debug!` and `trace!` are shown, and from which those of libraries are.
const DEBUG: u32 = 4;
const TRACE: u32 = 6;
const LIBRARIES: u32 = 8;

/// Our own crates; everything else is a library.
const OURS: &[&str] = &[
    "longshore",
    "addons",
    "dns",
    "overlay",
    "kubelet",
    "kubelet_core",
    "proxy",
    "proxy_core",
    "client",
    "apiserver",
    "apiserver_core",
    "controllers",
    "controllers_core",
    "scheduler",
    "scheduler_core",
    "supervise",
    "store",
    "schema",
    "base",
    "api",
    "cri",
    "sys",
];

static JSON: AtomicBool = AtomicBool::new(false);

/// Starts logging to standard error, and returns the verbosity. Whoever changes it has tracing look at its call sites
/// again. Says so when something already logs.
pub(crate) fn start(settings: &Logging) -> Result<Verbosity, tracing::subscriber::SetGlobalDefaultError> {
    let lines = Lines::new(settings, Stderr);
    let dial = lines.verbosity.clone();
    JSON.store(lines.json, Ordering::Relaxed);
    tracing::subscriber::set_global_default(Registry::default().with(lines)).map(|()| dial)
}

/// Whether a program reads the log.
pub(crate) fn is_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// Where lines go.
trait Sink: Send + Sync + 'static {
    fn line(&self, line: &str);
}

struct Stderr;

struct Lines<S> {
    json: bool,
    verbosity: Verbosity,
    modules: Vec<VModule>,
    pid: u32,
    sink: S,
}

/// What an event says.
#[derive(Default)]
struct Fields {
    message: String,
    /// Name, value, and whether the value is text.
    rest: Vec<(&'static str, String, bool)>,
}

// === impl Lines ===

impl<S: Sink> Lines<S> {
    fn new(settings: &Logging, sink: S) -> Self {
        Self {
            json: settings.format == "json",
            verbosity: Verbosity::new(settings.verbosity),
            modules: settings.vmodule.clone(),
            pid: std::process::id(),
            sink,
        }
    }

    /// The verbosity that holds in a source file.
    fn verbosity_in(&self, file: Option<&str>) -> u32 {
        let stem = file.map(|f| f.strip_suffix(".rs").unwrap_or(f)).unwrap_or_default();
        let name = stem.rsplit('/').next().unwrap_or_default();
        let hit = self.modules.iter().find(|m| {
            let subject = if m.file_pattern.contains('/') { stem } else { name };
            matches(m.file_pattern.as_bytes(), subject.as_bytes())
        });
        hit.map_or_else(|| self.verbosity.get(), |m| m.verbosity)
    }

    fn shows(&self, metadata: &Metadata<'_>) -> bool {
        let allowed = self.verbosity_in(metadata.file());
        let root = metadata.target().split("::").next().unwrap_or_default();
        let needed = verbosity_of(*metadata.level());
        allowed >= if needed > 0 && !OURS.contains(&root) { needed.max(LIBRARIES) } else { needed }
    }

    fn text(&self, at: Timestamp, metadata: &Metadata<'_>, fields: &Fields) -> String {
        let letter = match *metadata.level() {
            Level::ERROR => 'E',
            Level::WARN => 'W',
            _ => 'I',
        };
        let time = at.to_zoned(TimeZone::UTC).strftime("%m%d %H:%M:%S%.6f");
        let mut line =
            format!("{letter}{time} {:>7} {}] {}", self.pid, caller(metadata), quoted(&fields.message));
        for (name, value, text) in &fields.rest {
            let _ = match text {
                true => write!(line, " {name}={}", quoted(value)),
                false => write!(line, " {name}={value}"),
            };
        }
        line.push('\n');
        line
    }

    fn json(at: Timestamp, metadata: &Metadata<'_>, fields: &Fields) -> String {
        let mut object = serde_json::Map::new();
        let millis = at.as_microsecond() as f64 / 1000.0;
        object.insert("ts".into(), millis.into());
        object.insert("caller".into(), caller(metadata).into());
        object.insert("msg".into(), fields.message.clone().into());
        if *metadata.level() != Level::ERROR {
            object.insert("v".into(), verbosity_of(*metadata.level()).into());
        }
        for (name, value, text) in &fields.rest {
            let bare = (!text).then(|| serde_json::from_str(value).ok()).flatten();
            object.insert((*name).to_owned(), bare.unwrap_or_else(|| value.clone().into()));
        }
        format!("{}\n", serde_json::Value::Object(object))
    }

    fn write(&self, at: Timestamp, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let line = match self.json {
            true => Self::json(at, event.metadata(), &fields),
            false => self.text(at, event.metadata(), &fields),
        };
        self.sink.line(&line);
    }
}

impl<S: Sink, T: Subscriber> Layer<T> for Lines<S> {
    /// Each call site is judged once, and again when somebody turns the dial.
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if metadata.is_event() && self.shows(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, T>) -> bool {
        metadata.is_event() && self.shows(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let most = self.modules.iter().map(|m| m.verbosity).chain([self.verbosity.get()]).max();
        let most = most.unwrap_or_default();
        Some(match most {
            v if v >= TRACE => LevelFilter::TRACE,
            v if v >= DEBUG => LevelFilter::DEBUG,
            _ => LevelFilter::INFO,
        })
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, T>) {
        self.write(Timestamp::now(), event);
    }
}

// === impl Stderr ===

impl Sink for Stderr {
    fn line(&self, line: &str) {
        // Nowhere is left to say that nothing can be said.
        let _ = io::stderr().lock().write_all(line.as_bytes());
    }
}

// === impl Fields ===

impl Fields {
    fn add(&mut self, field: &Field, value: String, text: bool) {
        match field.name() {
            "message" => self.message = value,
            // The name upstream's tools look for.
            "error" => self.rest.insert(0, ("err", value, text)),
            name => self.rest.push((name, value, text)),
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.to_owned(), true);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.to_string(), false);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.to_string(), false);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.to_string(), false);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.to_string(), false);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.add(field, base::causes(value), true);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}"), true);
    }
}

fn verbosity_of(level: Level) -> u32 {
    match level {
        Level::TRACE => TRACE,
        Level::DEBUG => DEBUG,
        _ => 0,
    }
}

/// `file.rs:12`.
fn caller(metadata: &Metadata<'_>) -> String {
    let file = metadata.file().and_then(|f| f.rsplit('/').next()).unwrap_or("???");
    format!("{file}:{}", metadata.line().unwrap_or(1))
}

/// In double quotes, as Go quotes: one line, whatever the text holds.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() && u32::from(c) < 0x80 => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A file pattern: `*` is any run of characters, `?` one.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=text.len()).any(|i| matches(rest, &text[i..])),
        ([b'?', pattern @ ..], [_, text @ ..]) => matches(pattern, text),
        ([p, pattern @ ..], [t, text @ ..]) => p == t && matches(pattern, text),
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<String>>);

    impl Sink for Memory {
        fn line(&self, line: &str) {
            self.0.lock().unwrap().push_str(line);
        }
    }

    fn logged(settings: Logging, say: impl FnOnce()) -> Vec<String> {
        let memory = Memory::default();
        let subscriber = Registry::default().with(Lines::new(&settings, memory.clone()));
        tracing::subscriber::with_default(subscriber, say);
        let text = memory.0.lock().unwrap().clone();
        text.lines().map(str::to_owned).collect()
    }

    fn settings(format: &str, verbosity: u32) -> Logging {
        Logging { format: format.into(), verbosity, ..Logging::default() }
    }

    #[test]
    fn text_lines_have_klogs_shape() {
        let lines = logged(settings("text", 0), || {
            tracing::warn!(pod = "p", count = 3, error = %io::Error::other("no \"luck\"\n"), "it went wrong");
            tracing::debug!("too quiet");
        });
        assert_eq!(lines.len(), 1);
        let (head, tail) = lines[0].split_once("] ").unwrap();
        assert_eq!(tail, r#""it went wrong" err="no \"luck\"\n" pod="p" count=3"#);
        let shape: String = head.chars().map(|c| if c.is_ascii_digit() { '9' } else { c }).collect();
        assert!(shape.starts_with("W9999 99:99:99.999999 "), "{head}");
        assert!(head.contains(" logging.rs:"), "{head}");
        // The pid is right-aligned in seven columns.
        assert_eq!(
            head.split(" logging.rs").next().unwrap().len(),
            "W1115 21:30:00.123456 ".len() + 7,
            "{head}"
        );
    }

    #[test]
    fn json_lines_have_zaps_keys() {
        let lines = logged(settings("json", 4), || {
            tracing::debug!(pod = "p", ready = true, n = 2, "fine");
            tracing::error!(error = "bad", "broken");
        });
        let fine: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
        assert_eq!(
            (&fine["msg"], &fine["v"], &fine["ready"], &fine["n"]),
            (&"fine".into(), &4.into(), &true.into(), &2.into())
        );
        assert!(
            fine["ts"].as_f64().unwrap() > 1e12
                && fine["caller"].as_str().unwrap().starts_with("logging.rs:")
        );
        let broken: serde_json::Value = serde_json::from_str(&lines[1]).unwrap();
        assert_eq!((&broken["err"], broken.get("v")), (&"bad".into(), None));
    }

    #[test]
    fn libraries_stay_quiet_and_files_can_be_singled_out() {
        let say = || {
            tracing::debug!("ours");
            tracing::debug!(target: "h2::codec", "theirs");
        };
        assert_eq!(logged(settings("text", 4), say).len(), 1);
        assert_eq!(logged(settings("text", 8), say).len(), 2);
        let module = |pattern: &str| Logging {
            vmodule: vec![VModule { file_pattern: pattern.into(), verbosity: 5 }],
            ..settings("text", 0)
        };
        assert_eq!(logged(module("log*"), say).len(), 1);
        assert_eq!(logged(module("*/src/logging"), say).len(), 1);
        assert_eq!(logged(module("prober"), say).len(), 0);
    }

    #[test]
    fn the_dial_can_be_turned() {
        let memory = Memory::default();
        let lines = Lines::new(&settings("text", 0), memory.clone());
        let dial = lines.verbosity.clone();
        let say = |word: &str| tracing::debug!(word, "said");
        tracing::subscriber::with_default(Registry::default().with(lines), || {
            for (level, word) in [("0", "before"), ("4", "loud"), ("2", "after")] {
                dial.ask(level).unwrap();
                tracing::callsite::rebuild_interest_cache();
                say(word);
            }
        });
        let text = memory.0.lock().unwrap().clone();
        assert!(text.lines().count() == 1 && text.contains("word=\"loud\""), "{text}");
    }

    #[test]
    fn patterns() {
        for (pattern, text, hit) in
            [("*", "", true), ("a?c", "abc", true), ("a*c", "ac", true), ("a", "ab", false), ("?", "", false)]
        {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), hit, "{pattern} {text}");
        }
    }
}
