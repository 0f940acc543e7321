//! Counters, gauges and histograms, and their Prometheus text form (version 0.0.4).
//!
//! A family owns its series in one sorted vector behind a plain lock: an update is a binary search
//! and an addition, with no allocation once the series exists. The number of label values is part of
//! the type, so a forgotten label does not compile. Series are bounded: a family that is full drops
//! new ones and counts what it dropped, because label values may come from users.

use std::fmt::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Content-Type of the text form.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The client libraries' usual latency buckets, in seconds.
pub const DEFAULT_BUCKETS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Series a family keeps unless told otherwise.
const DEFAULT_LIMIT: usize = 4096;

/// `count` upper bounds, each `factor` times the one before, multiplied step by step so that the
/// printed bounds equal those of other clients.
#[must_use]
pub fn exponential_buckets(start: f64, factor: f64, count: usize) -> Vec<f64> {
    std::iter::successors(Some(start), |b| Some(b * factor)).take(count).collect()
}

/// A family that can print itself.
pub trait Family: Send + Sync {
    /// Prints header and samples; nothing at all when there is no series.
    fn write(&self, out: &mut dyn Write) -> fmt::Result;
    /// Series that were refused because the family was full.
    fn dropped(&self) -> u64;
}

/// Only goes up.
#[derive(Debug)]
pub struct Counter<const N: usize>(Series<f64, N>);

/// Goes up and down.
#[derive(Debug)]
pub struct Gauge<const N: usize>(Series<f64, N>);

/// Counts observations in buckets of upper bounds.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    series: Series<Cells, N>,
    bounds: Box<[f64]>,
}

/// Writes families whose samples are computed at the moment of the scrape.
pub struct Text<'a> {
    out: &'a mut dyn Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Debug)]
struct Series<T, const N: usize> {
    name: &'static str,
    help: &'static str,
    labels: [&'static str; N],
    constant: Vec<(&'static str, String)>,
    limit: usize,
    state: Mutex<State<T, N>>,
}

#[derive(Debug)]
struct State<T, const N: usize> {
    /// Sorted by label values.
    rows: Vec<([Box<str>; N], T)>,
    dropped: u64,
}

#[derive(Clone, Debug, Default)]
struct Cells {
    /// Not cumulative; one more than there are bounds.
    buckets: Vec<u64>,
    sum: f64,
}

// === impl Counter ===

impl<const N: usize> Counter<N> {
    #[must_use]
    pub fn new(name: &'static str, help: &'static str, labels: [&'static str; N]) -> Self {
        Self(Series::new(name, help, labels, || 0.0))
    }

    /// Adds a label that every series of the family carries.
    #[must_use]
    pub fn constant(mut self, label: &'static str, value: impl Into<String>) -> Self {
        self.0.constant.push((label, value.into()));
        self
    }

    /// Keeps at most `limit` series.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.0.limit = limit;
        self
    }

    pub fn inc(&self, labels: [&str; N]) {
        self.add(labels, 1.0);
    }

    pub fn add(&self, labels: [&str; N], n: f64) {
        self.0.update(labels, || 0.0, |v| *v += n.max(0.0));
    }

    #[must_use]
    pub fn get(&self, labels: [&str; N]) -> f64 {
        self.0.read(labels).unwrap_or_default()
    }

    /// Forgets the series whose label values do not satisfy `keep`.
    pub fn retain(&self, keep: impl Fn([&str; N]) -> bool) {
        self.0.retain(keep);
    }
}

impl<const N: usize> Family for Counter<N> {
    fn write(&self, out: &mut dyn Write) -> fmt::Result {
        self.0.write_plain(MetricType::Counter, out)
    }

    fn dropped(&self) -> u64 {
        self.0.lock().dropped
    }
}

// === impl Gauge ===

impl<const N: usize> Gauge<N> {
    #[must_use]
    pub fn new(name: &'static str, help: &'static str, labels: [&'static str; N]) -> Self {
        Self(Series::new(name, help, labels, || 0.0))
    }

    #[must_use]
    pub fn constant(mut self, label: &'static str, value: impl Into<String>) -> Self {
        self.0.constant.push((label, value.into()));
        self
    }

    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.0.limit = limit;
        self
    }

    /// Shows nothing until it is set: a zero would be taken for a value.
    #[must_use]
    pub fn when_set(self) -> Self {
        self.0.lock().rows.clear();
        self
    }

    pub fn set(&self, labels: [&str; N], value: f64) {
        self.0.update(labels, || 0.0, |v| *v = value);
    }

    pub fn add(&self, labels: [&str; N], n: f64) {
        self.0.update(labels, || 0.0, |v| *v += n);
    }

    #[must_use]
    pub fn get(&self, labels: [&str; N]) -> f64 {
        self.0.read(labels).unwrap_or_default()
    }

    pub fn retain(&self, keep: impl Fn([&str; N]) -> bool) {
        self.0.retain(keep);
    }
}

impl<const N: usize> Family for Gauge<N> {
    fn write(&self, out: &mut dyn Write) -> fmt::Result {
        self.0.write_plain(MetricType::Gauge, out)
    }

    fn dropped(&self) -> u64 {
        self.0.lock().dropped
    }
}

// === impl Histogram ===

impl<const N: usize> Histogram<N> {
    #[must_use]
    pub fn new(name: &'static str, help: &'static str, labels: [&'static str; N], bounds: &[f64]) -> Self {
        let empty = || Cells { buckets: vec![0; bounds.len() + 1], sum: 0.0 };
        Self { series: Series::new(name, help, labels, empty), bounds: bounds.into() }
    }

    #[must_use]
    pub fn constant(mut self, label: &'static str, value: impl Into<String>) -> Self {
        self.series.constant.push((label, value.into()));
        self
    }

    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.series.limit = limit;
        self
    }

    pub fn observe(&self, labels: [&str; N], value: f64) {
        let bucket = self.bounds.partition_point(|b| *b < value);
        let empty = || Cells { buckets: vec![0; self.bounds.len() + 1], sum: 0.0 };
        self.series.update(labels, empty, |cells| {
            cells.buckets[bucket] += 1;
            cells.sum += value;
        });
    }

    pub fn observe_duration(&self, labels: [&str; N], value: Duration) {
        self.observe(labels, value.as_secs_f64());
    }

    /// How many observations a series has seen.
    #[must_use]
    pub fn count(&self, labels: [&str; N]) -> u64 {
        self.series.read(labels).map(|c| c.buckets.iter().sum()).unwrap_or_default()
    }

    pub fn retain(&self, keep: impl Fn([&str; N]) -> bool) {
        self.series.retain(keep);
    }
}

impl<const N: usize> Family for Histogram<N> {
    fn write(&self, out: &mut dyn Write) -> fmt::Result {
        let s = &self.series;
        let state = s.lock();
        if state.rows.is_empty() {
            return Ok(());
        }
        let mut text = Text { out };
        text.header(s.name, MetricType::Histogram, s.help)?;
        for (values, cells) in &state.rows {
            let mut seen = 0;
            for (i, n) in cells.buckets.iter().enumerate() {
                seen += n;
                let bound = self.bounds.get(i).copied().unwrap_or(f64::INFINITY);
                write!(text.out, "{}_bucket", s.name)?;
                s.write_labels(values, Some(bound), text.out)?;
                writeln!(text.out, " {seen}")?;
            }
            write!(text.out, "{}_sum", s.name)?;
            s.write_labels(values, None, text.out)?;
            writeln!(text.out, " {}", Float(cells.sum))?;
            write!(text.out, "{}_count", s.name)?;
            s.write_labels(values, None, text.out)?;
            writeln!(text.out, " {seen}")?;
        }
        Ok(())
    }

    fn dropped(&self) -> u64 {
        self.series.lock().dropped
    }
}

// === impl Series ===

impl<T: Clone, const N: usize> Series<T, N> {
    fn new(name: &'static str, help: &'static str, labels: [&'static str; N], empty: impl Fn() -> T) -> Self {
        // A family without labels shows its zero from the start.
        let rows = if N == 0 { vec![(std::array::from_fn(|_| Box::default()), empty())] } else { vec![] };
        let state = Mutex::new(State { rows, dropped: 0 });
        Self { name, help, labels, constant: vec![], limit: DEFAULT_LIMIT, state }
    }

    fn lock(&self) -> MutexGuard<'_, State<T, N>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, labels: [&str; N], empty: impl Fn() -> T, change: impl FnOnce(&mut T)) {
        let state = &mut *self.lock();
        match find(&state.rows, labels) {
            Ok(i) => change(&mut state.rows[i].1),
            Err(_) if state.rows.len() >= self.limit => state.dropped += 1,
            Err(i) => {
                let mut value = empty();
                change(&mut value);
                state.rows.insert(i, (labels.map(Box::from), value));
            }
        }
    }

    fn read(&self, labels: [&str; N]) -> Option<T> {
        let state = self.lock();
        find(&state.rows, labels).ok().map(|i| state.rows[i].1.clone())
    }

    fn retain(&self, keep: impl Fn([&str; N]) -> bool) {
        self.lock().rows.retain(|(values, _)| keep(borrow(values)));
    }

    fn write_labels(&self, values: &[Box<str>; N], bound: Option<f64>, out: &mut dyn Write) -> fmt::Result {
        let constant = self.constant.iter().map(|(k, v)| (*k, v.as_str()));
        let own = self.labels.iter().copied().zip(values.iter().map(|v| &**v));
        write_labels(constant.chain(own), bound, out)
    }
}

impl<const N: usize> Series<f64, N> {
    fn write_plain(&self, kind: MetricType, out: &mut dyn Write) -> fmt::Result {
        let state = self.lock();
        if state.rows.is_empty() {
            return Ok(());
        }
        Text { out }.header(self.name, kind, self.help)?;
        for (values, value) in &state.rows {
            out.write_str(self.name)?;
            self.write_labels(values, None, out)?;
            writeln!(out, " {}", Float(*value))?;
        }
        Ok(())
    }
}

fn borrow<const N: usize>(values: &[Box<str>; N]) -> [&str; N] {
    std::array::from_fn(|i| &*values[i])
}

fn find<T, const N: usize>(rows: &[([Box<str>; N], T)], labels: [&str; N]) -> Result<usize, usize> {
    rows.binary_search_by(|(values, _)| borrow(values).cmp(&labels))
}

// === impl Text ===

impl<'a> Text<'a> {
    pub fn new(out: &'a mut dyn Write) -> Self {
        Self { out }
    }

    /// The HELP and TYPE lines of a family; its samples follow.
    pub fn header(&mut self, name: &str, kind: MetricType, help: &str) -> fmt::Result {
        writeln!(self.out, "# HELP {name} {}", Escaped { text: help, quote: false })?;
        let kind = match kind {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
        };
        writeln!(self.out, "# TYPE {name} {kind}")
    }

    /// One sample. `at` is an explicit timestamp in milliseconds since the epoch.
    pub fn sample(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        value: f64,
        at: Option<i64>,
    ) -> fmt::Result {
        self.out.write_str(name)?;
        write_labels(labels.iter().copied(), None, self.out)?;
        self.end(value, at)
    }

    /// The same with labels that are written already, as [`escape_label`] leaves them: those that many samples have, and
    /// more of them that only this one has.
    pub fn sample_of(
        &mut self,
        name: &str,
        labels: &str,
        more: &str,
        value: f64,
        at: Option<i64>,
    ) -> fmt::Result {
        self.out.write_str(name)?;
        self.out.write_char('{')?;
        self.out.write_str(labels)?;
        if !more.is_empty() {
            self.out.write_str(if labels.is_empty() { "" } else { "," })?;
            self.out.write_str(more)?;
        }
        self.out.write_char('}')?;
        self.end(value, at)
    }

    fn end(&mut self, value: f64, at: Option<i64>) -> fmt::Result {
        write!(self.out, " {}", Float(value))?;
        if let Some(at) = at {
            write!(self.out, " {at}")?;
        }
        self.out.write_char('\n')
    }
}

/// A label's value as it stands between the quotes.
#[must_use]
pub fn escape_label(value: &str) -> impl fmt::Display {
    Escaped { text: value, quote: true }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Text")
    }
}

fn write_labels<'a>(
    labels: impl Iterator<Item = (&'a str, &'a str)>,
    bound: Option<f64>,
    out: &mut dyn Write,
) -> fmt::Result {
    let mut open = '{';
    for (name, value) in labels {
        write!(out, "{open}{name}=\"{}\"", Escaped { text: value, quote: true })?;
        open = ',';
    }
    if let Some(bound) = bound {
        write!(out, "{open}le=\"{}\"", Float(bound))?;
        open = ',';
    }
    if open == ',' { out.write_char('}') } else { Ok(()) }
}

/// Backslash and newline escaped; the quote too inside label values.
struct Escaped<'a> {
    text: &'a str,
    quote: bool,
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let special = |c: char| c == '\\' || c == '\n' || (self.quote && c == '"');
        let mut rest = self.text;
        while let Some(i) = rest.find(special) {
            f.write_str(&rest[..i])?;
            f.write_str(match rest.as_bytes()[i] {
                b'\\' => "\\\\",
                b'\n' => "\\n",
                _ => "\\\"",
            })?;
            rest = &rest[i + 1..];
        }
        f.write_str(rest)
    }
}

struct Float(f64);

impl fmt::Display for Float {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            v if v.is_nan() => f.write_str("NaN"),
            f64::INFINITY => f.write_str("+Inf"),
            f64::NEG_INFINITY => f.write_str("-Inf"),
            v => write!(f, "{v}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(family: &dyn Family) -> String {
        let mut out = String::new();
        assert!(family.write(&mut out).is_ok());
        out
    }

    #[test]
    fn counters_print_sorted_and_escaped() {
        let c = Counter::new("x_total", "Back\\slash and\nline.", ["a", "b"]).constant("node", "n1");
        assert_eq!(text(&c), "");
        c.inc(["z", "quote\" slash\\ line\n"]);
        c.add(["a", "2"], 2.5);
        c.add(["a", "2"], -1.0);
        assert_eq!(
            text(&c),
            "# HELP x_total Back\\\\slash and\\nline.\n# TYPE x_total counter\n\
             x_total{node=\"n1\",a=\"a\",b=\"2\"} 2.5\n\
             x_total{node=\"n1\",a=\"z\",b=\"quote\\\" slash\\\\ line\\n\"} 1\n"
        );
    }

    #[test]
    fn a_family_without_labels_starts_at_zero() {
        let g = Gauge::new("g", "h", []);
        assert_eq!(text(&g), "# HELP g h\n# TYPE g gauge\ng 0\n");
        g.set([], f64::NEG_INFINITY);
        assert!(text(&g).ends_with("g -Inf\n"));
        let g = Gauge::new("g", "h", []).when_set();
        assert_eq!(text(&g), "");
        g.set([], f64::INFINITY);
        assert!(text(&g).ends_with("g +Inf\n"));
    }

    #[test]
    fn histograms_are_cumulative_and_bounds_inclusive() {
        let h = Histogram::new("h", "h", ["op"], &[0.5, 1.0]);
        for v in [0.5, 0.6, 7.0] {
            h.observe(["x"], v);
        }
        assert_eq!(
            text(&h),
            "# HELP h h\n# TYPE h histogram\nh_bucket{op=\"x\",le=\"0.5\"} 1\nh_bucket{op=\"x\",le=\"1\"} 2\n\
             h_bucket{op=\"x\",le=\"+Inf\"} 3\nh_sum{op=\"x\"} 8.1\nh_count{op=\"x\"} 3\n"
        );
        assert_eq!(h.count(["x"]), 3);
    }

    #[test]
    fn a_full_family_drops_and_counts_and_forgets_on_request() {
        let c = Counter::new("c", "h", ["pod"]).limit(2);
        for pod in ["a", "b", "c", "a"] {
            c.inc([pod]);
        }
        assert_eq!((c.get(["a"]), c.get(["c"]), c.dropped()), (2.0, 0.0, 1));
        c.retain(|[pod]| pod != "a");
        c.inc(["c"]);
        assert_eq!((c.get(["a"]), c.get(["b"]), c.get(["c"])), (0.0, 1.0, 1.0));
    }

    #[test]
    fn samples_carry_explicit_timestamps() {
        let mut out = String::new();
        let mut t = Text::new(&mut out);
        assert!(t.header("m", MetricType::Gauge, "h").is_ok());
        assert!(t.sample("m", &[("a", "b")], f64::NAN, Some(1234)).is_ok());
        assert_eq!(out, "# HELP m h\n# TYPE m gauge\nm{a=\"b\"} NaN 1234\n");
    }

    #[test]
    fn exponential_bounds_print_as_other_clients_print_them() {
        let b = exponential_buckets(0.005, 2.5, 14);
        assert_eq!((b.len(), b[1], b[13].to_string().as_str()), (14, 0.0125, "745.0580596923828"));
    }
}
