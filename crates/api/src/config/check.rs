//! Collects what is wrong with a configuration, each mistake under its field's path.

use std::fmt::Display;

use base::quantity::Quantity;

use super::FieldError;

/// Collects mistakes.
pub(super) struct Check {
    errors: Vec<FieldError>,
    /// The flag that sets a field, for whoever wrote the flag and not the field.
    flag_of: fn(&str) -> Option<&'static str>,
}

// === impl Check ===

impl Check {
    pub(super) fn new(flag_of: fn(&str) -> Option<&'static str>) -> Self {
        Self { errors: Vec::new(), flag_of }
    }

    pub(super) fn into_errors(self) -> Vec<FieldError> {
        self.errors
    }

    pub(super) fn fail(&mut self, path: &str, why: impl Into<String>) {
        let mut message = why.into();
        if let Some(flag) = (self.flag_of)(path) {
            message.push_str(&format!(" (flag --{flag})"));
        }
        self.errors.push(FieldError::new(path, message));
    }

    pub(super) fn range<T: PartialOrd + Display>(&mut self, path: &str, value: T, min: T, max: T) {
        if value < min || value > max {
            self.fail(path, format!("{value} must be between {min} and {max}, inclusive"));
        }
    }

    pub(super) fn at_least<T: PartialOrd + Display>(&mut self, path: &str, value: T, min: T) {
        if value < min {
            self.fail(path, format!("{value} must be at least {min}"));
        }
    }

    pub(super) fn one_of(&mut self, path: &str, value: &str, allowed: &[&str]) {
        if !allowed.contains(&value) {
            let list: Vec<String> = allowed.iter().map(|a| format!("{a:?}")).collect();
            self.fail(path, format!("{value:?} must be one of {}", list.join(", ")));
        }
    }

    pub(super) fn quantity(&mut self, path: &str, text: &str) -> Option<Quantity> {
        match text.parse() {
            Ok(quantity) => Some(quantity),
            Err(e) => {
                self.fail(path, format!("{e}"));
                None
            }
        }
    }

    /// Metrics hidden in the minor version before this one may be shown once more; older are gone.
    pub(super) fn hidden_metrics(&mut self, version: &str) {
        const PREVIOUS: &str = "1.35";
        if !version.is_empty() && version != PREVIOUS {
            let text = format!("{version:?} must be omitted or have the value {PREVIOUS:?}");
            self.fail("showHiddenMetricsForVersion", text);
        }
    }
}
