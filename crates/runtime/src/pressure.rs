//! How long processes of a cgroup waited for processors, memory or devices: the kernel's pressure stall information.

use cri::v1::{PsiData, PsiStats};
use sys::cgroup::{Hierarchies, Version};

/// Of `cpu`, `memory` or `io`. None on the old hierarchies, and where the kernel does not measure it.
pub(crate) fn of(hierarchies: &Hierarchies, cgroup: &str, controller: &str) -> Option<PsiStats> {
    if hierarchies.version() == Version::V1 {
        return None;
    }
    parse(&hierarchies.read(cgroup, controller, &format!("{controller}.pressure")).ok().flatten()?)
}

/// A line each for `some` and `full`. Totals are microseconds, as every runtime tells them.
fn parse(text: &str) -> Option<PsiStats> {
    let line = |kind: &str| {
        let words = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
        let of = |name: &str| words.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let average = |name: &str| of(name).and_then(|text| text.parse().ok()).unwrap_or_default();
        Some(PsiData {
            total: of("total")?.parse().ok()?,
            avg10: average("avg10"),
            avg60: average("avg60"),
            avg300: average("avg300"),
        })
    };
    Some(PsiStats { some: Some(line("some")?), full: Some(line("full").unwrap_or_default()) })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let text =
            "some avg10=1.50 avg60=0.20 avg300=0.00 total=77\nfull avg10=0.00 avg60=0.10 avg300=0.00 total=5";
        let stats = parse(text).unwrap();
        let (some, full) = (stats.some.unwrap(), stats.full.unwrap());
        assert_eq!((some.total, some.avg10, some.avg60, full.total, full.avg60), (77, 1.5, 0.2, 5, 0.1));
        assert_eq!(parse("some avg10=0 avg60=0 avg300=0 total=3").unwrap().full.unwrap().total, 0);
        assert_eq!(parse(""), None);
    }
}
