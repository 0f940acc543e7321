//! Figures of both sides, their ratio, and what was promised.

use std::fmt::Write as _;
use std::time::Duration;

pub(crate) struct Row {
    what: String,
    unit: &'static str,
    ours: f64,
    beside: String,
    theirs: f64,
    /// How many times less, or more, ours is.
    ratio: f64,
    goal: Option<Goal>,
}

enum Goal {
    Times(f64),
    AtMost(f64),
}

// === impl Row ===

impl Row {
    /// Less is better.
    pub(crate) fn less(
        what: &str,
        unit: &'static str,
        ours: f64,
        beside: &str,
        theirs: f64,
        goal: Option<f64>,
    ) -> Row {
        Row::new(what, unit, (ours, theirs), beside, theirs / ours, goal)
    }

    /// More is better.
    pub(crate) fn more(
        what: &str,
        unit: &'static str,
        ours: f64,
        beside: &str,
        theirs: f64,
        goal: Option<f64>,
    ) -> Row {
        Row::new(what, unit, (ours, theirs), beside, ours / theirs, goal)
    }

    fn new(
        what: &str,
        unit: &'static str,
        (ours, theirs): (f64, f64),
        beside: &str,
        ratio: f64,
        goal: Option<f64>,
    ) -> Row {
        let goal = goal.map(Goal::Times);
        Row { what: what.to_owned(), unit, ours, beside: beside.to_owned(), theirs, ratio, goal }
    }

    pub(crate) fn at_most(self, most: f64) -> Row {
        Row { goal: Some(Goal::AtMost(most)), ..self }
    }

    pub(crate) fn is_met(&self) -> bool {
        match self.goal {
            Some(Goal::Times(times)) => self.ratio >= times,
            Some(Goal::AtMost(most)) => self.ours <= most,
            None => true,
        }
    }
}

pub(crate) fn render(rows: &[Row]) -> String {
    let mut text = format!("{:<46}{:>10}{:>12}       {:<22}{:>7}\n", "", "ours", "theirs", "", "times");
    for row in rows {
        let verdict = if row.is_met() { "met" } else { "MISSED" };
        let goal = match row.goal {
            Some(Goal::Times(times)) => format!("  goal {times} times: {verdict}"),
            Some(Goal::AtMost(most)) => format!("  goal {most} {}: {verdict}", row.unit),
            None => String::new(),
        };
        _ = writeln!(
            text,
            "{:<46}{:>10.2}{:>12.2} {:<5} {:<22}{:>7.1}{goal}",
            row.what, row.ours, row.theirs, row.unit, row.beside, row.ratio
        );
    }
    text
}

/// The median, in milliseconds.
pub(crate) fn p50(times: &[Duration]) -> f64 {
    let all: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1000.0).collect();
    median(&all)
}

pub(crate) fn median(all: &[f64]) -> f64 {
    let mut all = all.to_vec();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_a_ratio_or_a_figure() {
        let row = |ours, theirs| Row::less("x", "ms", ours, "y", theirs, Some(4.0));
        assert!(row(1.0, 4.0).is_met() && !row(1.0, 3.9).is_met());
        let row = |ours| Row::less("x", "MB", ours, "y", 100.0, None).at_most(40.0);
        assert!(row(40.0).is_met() && !row(40.1).is_met());
        assert!(Row::more("x", "MB", 30.0, "y", 2.0, Some(15.0)).is_met());
        assert!(render(&[row(1.0)]).contains("goal 40 MB: met"));
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
    }
}
