use proptest::prelude::*;

use super::*;
use crate::topology::mask::Hint;

const DEV: &str = "vendor.com/device";

proptest! {
    #[test]
    fn no_device_is_given_twice_and_a_restart_goes_on(
        nodes in proptest::collection::vec(proptest::option::of(0i64..2), 1..12),
        asks in proptest::collection::vec((0u8..5, 1usize..4, 0u8..4, any::<bool>()), 0..16),
    ) {
        let mut books = DeviceBooks::new(vec![0, 1], Entries::new(), []);
        let device = |(i, node): (usize, Option<i64>)| {
            (format!("d{i}"), Device { healthy: true, nodes: node.into_iter().collect() })
        };
        let devices: Devices = nodes.into_iter().enumerate().map(device).collect();
        books.heard(DEV, devices.clone());
        for (pod, count, hint, release) in asks {
            let uid = format!("p{pod}");
            if release {
                books.keep_only(|other| other != uid);
                continue;
            }
            let hint = Hint { nodes: Some(crate::topology::mask::NumaMask::new((0..2).filter(|n| hint & (1 << n) != 0))), preferred: false };
            let Ok(Some(plan)) = books.plan(&uid, "c", DEV, count, hint, false) else { continue };
            let chosen = books.choose(DEV, &plan, &Ids::new());
            let Ok(chosen) = chosen else { return Err(TestCaseError::fail("a plan that cannot be carried out")) };
            prop_assert_eq!(chosen.len(), count);
            books.insert(&uid, "c", DEV, &chosen, vec![7]);
            let mut seen = Ids::new();
            for allocation in books.entries().values().flat_map(BTreeMap::values).filter_map(|c| c.get(DEV)) {
                for id in allocation.ids() {
                    prop_assert!(seen.insert(id), "two Pods share a device");
                }
            }
            let saved = checkpoint::read(&checkpoint::write(&books));
            let saved = saved.map_err(|e| TestCaseError::fail(e.to_string()))?;
            let mut again = DeviceBooks::new(vec![0, 1], saved.entries, saved.resources);
            again.heard(DEV, devices.clone());
            prop_assert_eq!(again.entries(), books.entries());
            prop_assert_eq!(again.available(DEV), books.available(DEV));
        }
    }
}
