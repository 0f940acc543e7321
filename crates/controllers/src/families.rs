//! Series of the families that controllers count, as many as come.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::{Mutex, PoisonError};

use base::metrics::{MetricType, Text, exponential_buckets};
use controllers_core::measure::{Kind, Measure};

/// Series of all families together: label values may come from users.
const LIMIT: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Families(Mutex<BTreeMap<(&'static str, Vec<String>), Series>>);

#[derive(Debug)]
struct Series {
    family: &'static controllers_core::measure::Family,
    /// The number, or the sum of a histogram.
    value: f64,
    /// Of a histogram; not cumulative, one more than there are bounds.
    buckets: Vec<u64>,
    bounds: Vec<f64>,
}

// === impl Families ===

impl Families {
    pub(crate) fn take(&self, measures: impl IntoIterator<Item = Measure>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for Measure { family, labels, value } in measures {
            let key = (family.name, labels);
            if all.len() >= LIMIT && !all.contains_key(&key) {
                continue;
            }
            all.entry(key).or_insert_with(|| Series::new(family)).take(value);
        }
    }

    pub(crate) fn write(&self, out: &mut dyn Write) -> fmt::Result {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut last = "";
        for ((name, labels), series) in all.iter() {
            if *name != last {
                let kind = match series.family.kind {
                    Kind::Counter => MetricType::Counter,
                    Kind::Gauge => MetricType::Gauge,
                    Kind::Histogram(..) => MetricType::Histogram,
                };
                Text::new(out).header(name, kind, series.family.help)?;
                last = name;
            }
            series.write(name, labels, out)?;
        }
        Ok(())
    }
}

// === impl Series ===

impl Series {
    fn new(family: &'static controllers_core::measure::Family) -> Series {
        let bounds = match family.kind {
            Kind::Histogram(first, factor, count) => exponential_buckets(first, factor, count),
            Kind::Counter | Kind::Gauge => Vec::new(),
        };
        let buckets = if bounds.is_empty() { Vec::new() } else { vec![0; bounds.len() + 1] };
        Series { family, value: 0.0, buckets, bounds }
    }

    fn take(&mut self, value: f64) {
        match self.family.kind {
            Kind::Gauge => self.value = value,
            Kind::Counter => self.value += value,
            Kind::Histogram(..) => {
                self.value += value;
                self.buckets[self.bounds.partition_point(|bound| *bound < value)] += 1;
            }
        }
    }

    fn write(&self, name: &str, labels: &[String], out: &mut dyn Write) -> fmt::Result {
        let labels: Vec<(&str, &str)> =
            self.family.labels.iter().copied().zip(labels.iter().map(String::as_str)).collect();
        let mut text = Text::new(out);
        if !matches!(self.family.kind, Kind::Histogram(..)) {
            return text.sample(name, &labels, self.value, None);
        }
        let mut seen = 0;
        for (at, count) in self.buckets.iter().enumerate() {
            seen += count;
            let bound = self.bounds.get(at).map_or_else(|| "+Inf".to_owned(), ToString::to_string);
            let mut labels = labels.clone();
            labels.push(("le", &bound));
            text.sample(&format!("{name}_bucket"), &labels, seen as f64, None)?;
        }
        text.sample(&format!("{name}_sum"), &labels, self.value, None)?;
        text.sample(&format!("{name}_count"), &labels, seen as f64, None)
    }
}

#[cfg(test)]
mod tests {
    use controllers_core::measure::Family;

    use super::*;

    static COUNTER: Family = Family { name: "a_total", help: "As.", labels: &["x"], kind: Kind::Counter };
    static TIMES: Family =
        Family { name: "b_seconds", help: "Bs.", labels: &[], kind: Kind::Histogram(1.0, 2.0, 2) };
    static NOW: Family = Family { name: "c", help: "Cs.", labels: &[], kind: Kind::Gauge };

    fn one(family: &'static Family, labels: &[&str], value: f64) -> Measure {
        Measure { family, labels: labels.iter().map(|label| (*label).to_owned()).collect(), value }
    }

    #[test]
    fn families_print_as_those_of_everybody() {
        let families = Families::default();
        families.take([
            one(&COUNTER, &["p"], 1.0),
            one(&COUNTER, &["p"], 1.0),
            one(&COUNTER, &["q"], 1.0),
            one(&TIMES, &[], 1.0),
            one(&TIMES, &[], 3.5),
            one(&NOW, &[], 5.0),
            one(&NOW, &[], 4.0),
        ]);
        let mut out = String::new();
        assert!(families.write(&mut out).is_ok());
        assert_eq!(
            out,
            "# HELP a_total As.\n# TYPE a_total counter\na_total{x=\"p\"} 2\na_total{x=\"q\"} 1\n\
             # HELP b_seconds Bs.\n# TYPE b_seconds histogram\nb_seconds_bucket{le=\"1\"} 1\n\
             b_seconds_bucket{le=\"2\"} 1\nb_seconds_bucket{le=\"+Inf\"} 2\nb_seconds_sum 4.5\nb_seconds_count 2\n\
             # HELP c Cs.\n# TYPE c gauge\nc 4\n"
        );
    }

    #[test]
    fn series_are_bounded() {
        let families = Families::default();
        families.take((0..2 * LIMIT).map(|n| one(&COUNTER, &[&n.to_string()], 1.0)));
        families.take([one(&COUNTER, &["0"], 1.0)]);
        let mut out = String::new();
        assert!(families.write(&mut out).is_ok());
        assert_eq!(out.lines().count(), LIMIT + 2);
        assert!(out.contains("a_total{x=\"0\"} 2\n"));
    }
}
