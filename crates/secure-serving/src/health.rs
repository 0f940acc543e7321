//! Health checks: what must be so, and the page that tells.

use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::metrics::{MetricType, Text};
use http::StatusCode;

/// One thing that must be so. The text says what is wrong.
#[derive(Clone)]
pub struct Check {
    name: &'static str,
    run: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
    asked: Arc<Asked>,
}

/// How often a check was asked for with all others, by how it went.
#[derive(Default)]
struct Asked {
    passed: AtomicU64,
    failed: AtomicU64,
}

/// Checks, in the order in which they are shown.
#[derive(Clone, Debug, Default)]
pub struct Checks(Arc<Vec<Check>>);

// === impl Check ===

impl Check {
    pub fn new(name: &'static str, run: impl Fn() -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self { name, run: Arc::new(run), asked: Arc::default() }
    }

    fn ask(&self) -> Result<(), String> {
        let result = (self.run)();
        let count = if result.is_ok() { &self.asked.passed } else { &self.asked.failed };
        count.fetch_add(1, Ordering::Relaxed);
        result
    }

    /// Passes as long as there is somebody to answer.
    #[must_use]
    pub fn ping() -> Self {
        Self::new("ping", || Ok(()))
    }

    /// Log lines are written as they come; there is no flushing that could be stuck.
    #[must_use]
    pub fn log() -> Self {
        Self::new("log", || Ok(()))
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

// === impl Checks ===

impl Checks {
    #[must_use]
    pub fn new(checks: Vec<Check>) -> Self {
        Self(Arc::new(checks))
    }

    /// The page of all checks, which is called `word`: `healthz`.
    #[must_use]
    pub fn all(&self, word: &str, query: &str) -> (StatusCode, String) {
        let excluded: Vec<&str> = pairs(query).filter(|(k, _)| *k == "exclude").map(|(_, v)| v).collect();
        let (mut text, mut failed) = (String::new(), false);
        for check in self.0.iter() {
            let name = check.name;
            let line = if excluded.contains(&name) {
                format!("[+]{name} excluded: ok\n")
            } else if let Err(error) = check.ask() {
                failed = true;
                tracing::info!(check = name, error, "health check failed");
                // Why is for the log: anybody may ask here.
                format!("[-]{name} failed: reason withheld\n")
            } else {
                format!("[+]{name} ok\n")
            };
            text.push_str(&line);
        }
        let unknown: Vec<String> = excluded
            .iter()
            .filter(|name| !self.0.iter().any(|c| c.name == **name))
            .map(|name| format!("{name:?}"))
            .collect();
        if !unknown.is_empty() {
            let names = unknown.join(",");
            let _ = writeln!(text, "warn: some health checks cannot be excluded: no matches for {names}");
        }
        if failed {
            let _ = writeln!(text, "{word} check failed");
            return (StatusCode::INTERNAL_SERVER_ERROR, text);
        }
        if pairs(query).any(|(k, _)| k == "verbose") {
            let _ = writeln!(text, "{word} check passed");
            return (StatusCode::OK, text);
        }
        (StatusCode::OK, "ok".to_owned())
    }

    /// The page of one check.
    #[must_use]
    pub fn one(&self, name: &str) -> (StatusCode, String) {
        match self.0.iter().find(|c| c.name == name).map(|c| (c.run)()) {
            Some(Ok(())) => (StatusCode::OK, "ok".to_owned()),
            Some(Err(error)) => {
                (StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {error}\n"))
            }
            None => (StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
        }
    }

    /// How every check stands, and how often it was asked for, as metrics.
    pub fn write(&self, out: &mut dyn Write) -> fmt::Result {
        const STANDS: &str = "kubernetes_healthcheck";
        const ASKED: &str = "kubernetes_healthchecks_total";
        let mut text = Text::new(out);
        text.header(STANDS, MetricType::Gauge, "1 while the health check passes, 0 while it fails.")?;
        for check in self.0.iter() {
            let passes = f64::from(u8::from((check.run)().is_ok()));
            text.sample(STANDS, &[("name", check.name), ("type", "healthz")], passes, None)?;
        }
        text.header(ASKED, MetricType::Counter, "How often the health check was asked for, by how it went.")?;
        for check in self.0.iter() {
            for (status, count) in [("error", &check.asked.failed), ("success", &check.asked.passed)] {
                let labels = [("name", check.name), ("status", status), ("type", "healthz")];
                match count.load(Ordering::Relaxed) {
                    0 => {}
                    n => text.sample(ASKED, &labels, n as f64, None)?,
                }
            }
        }
        Ok(())
    }

    /// The first thing that is wrong.
    pub fn verdict(&self) -> Result<(), String> {
        self.0.iter().try_for_each(|c| (c.run)().map_err(|e| format!("checker {} failed: {e}", c.name)))
    }
}

/// The query's parameters. Check names need no unescaping.
fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}
