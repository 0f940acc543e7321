//! Names that many objects share are kept once: namespaces, port names, zones.

use std::collections::BTreeSet;
use std::sync::Arc;

#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    known: BTreeSet<Arc<str>>,
    /// How many there may be before those that nobody holds any more are let go.
    limit: usize,
}

// === impl Names ===

impl Names {
    pub(super) fn get(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.known.get(name) {
            return known.clone();
        }
        if self.known.len() >= self.limit {
            self.known.retain(|known| Arc::strong_count(known) > 1);
            self.limit = 64 + 2 * self.known.len();
        }
        let new: Arc<str> = name.into();
        self.known.insert(new.clone());
        new
    }

    /// Trades a copy for the one everybody else has.
    pub(super) fn share(&mut self, name: &mut Arc<str>) {
        *name = self.get(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_once_and_not_for_ever() {
        let mut names = Names::default();
        let kept = names.get("kept");
        for i in 0..10_000 {
            names.get(&format!("name-{i}"));
        }
        assert!(Arc::ptr_eq(&kept, &names.get("kept")));
        assert!(names.known.len() < 200, "{}", names.known.len());
    }
}
