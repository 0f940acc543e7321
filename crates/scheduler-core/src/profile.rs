//! Which plugins run for the Pods of one scheduler name.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::config::scheduler::{self, PluginArgs, PluginRef, PluginSet as ConfigSet, Plugins};

use crate::Name;
use crate::event::Event;
use crate::framework::Plugin;
use crate::plugins::{PluginId, Point, TABLE, row};
use crate::pod::DEFAULT_SCHEDULER;
use crate::status::PluginSet;

/// One profile.
#[derive(Debug)]
pub struct Profile {
    pub scheduler: Name,
    plugins: BTreeMap<PluginId, Arc<dyn Plugin>>,
    points: BTreeMap<Point, Vec<(PluginId, i64)>>,
    /// Of all nodes, how many are looked for; None: what holds for all profiles.
    pub percentage: Option<i32>,
    pub args: PluginArgs,
}

/// All profiles, by scheduler name.
#[derive(Debug, Default)]
pub struct Profiles(BTreeMap<Name, Arc<Profile>>);

/// Plugins by extension point, in order, each with its weight.
pub type Points = BTreeMap<Point, Vec<(PluginId, i64)>>;

/// What a profile's plugin sets come to: explicit points win over `multiPoint`, and that over the defaults.
pub fn points(plugins: &Plugins) -> Result<Points, String> {
    let defaults = TABLE.iter().map(|row| (row.id, row.weight.max(1)));
    let multi = merge(defaults.collect(), &plugins.multi_point)?;
    let mut points = Points::new();
    for (name, set) in scheduler::points(plugins) {
        let Some(point) = Point::named(name) else { continue };
        let explicit = set.enabled.iter().map(found).collect::<Result<Vec<_>, _>>()?;
        for (id, _) in &explicit {
            if !row(*id).is_some_and(|row| row.points.contains(&point)) {
                return Err(format!("plugin {:?} does not extend {name} plugin", id.name()));
            }
        }
        let is_disabled = |id: PluginId| set.disabled.iter().any(|d| d.name == "*" || d.name == id.name());
        let general = multi.iter().filter(|(id, _)| {
            let has_point = row(*id).is_some_and(|row| row.points.contains(&point));
            has_point && !is_disabled(*id) && !explicit.iter().any(|(known, _)| known == id)
        });
        // What is said twice comes first, what only the point says last.
        let is_general = |id: &PluginId| multi.iter().any(|(known, _)| known == id);
        let (first, last): (Vec<_>, Vec<_>) = explicit.iter().partition(|(id, _)| is_general(id));
        points.insert(point, first.into_iter().chain(general.copied()).chain(last).collect());
    }
    match points.get(&Point::QueueSort).map(Vec::len) {
        Some(1) => {}
        Some(0) | None => return Err("at least one queue sort plugin is required".to_owned()),
        Some(_) => return Err("only one queue sort plugin can be enabled".to_owned()),
    }
    if points.get(&Point::Bind).is_none_or(Vec::is_empty) {
        return Err("at least one bind plugin is needed".to_owned());
    }
    Ok(points)
}

/// Defaults that are not disabled, each replaced where it is enabled again; then what is new.
fn merge(defaults: Vec<(PluginId, i64)>, set: &ConfigSet) -> Result<Vec<(PluginId, i64)>, String> {
    let mut enabled = set.enabled.iter().map(found).collect::<Result<Vec<_>, _>>()?;
    let is_disabled = |id: PluginId| set.disabled.iter().any(|d| d.name == "*" || d.name == id.name());
    let mut all = Vec::new();
    for (id, weight) in defaults.into_iter().filter(|(id, _)| !is_disabled(*id)) {
        match enabled.iter().position(|(known, _)| *known == id) {
            Some(at) => all.push(enabled.remove(at)),
            None => all.push((id, weight)),
        }
    }
    all.append(&mut enabled);
    Ok(all)
}

fn found(plugin: &PluginRef) -> Result<(PluginId, i64), String> {
    let id =
        PluginId::named(&plugin.name).ok_or_else(|| format!("plugin {:?} does not exist", plugin.name))?;
    Ok((id, plugin.weight.max(1)))
}

// === impl Profile ===

impl Profile {
    #[must_use]
    pub fn new(scheduler: &str, points: Points, args: PluginArgs, percentage: Option<i32>) -> Profile {
        let used = |id: PluginId| points.values().flatten().any(|(known, _)| *known == id);
        let plugins =
            TABLE.iter().filter(|row| used(row.id)).map(|row| (row.id, (row.make)(&args))).collect();
        Profile { scheduler: scheduler.into(), plugins, points, percentage, args }
    }

    /// Every plugin at every point it has.
    #[must_use]
    pub fn default_points() -> Points {
        let mut points = Points::new();
        for row in TABLE {
            for point in row.points {
                points.entry(*point).or_default().push((row.id, row.weight.max(1)));
            }
        }
        points
    }

    /// The plugins of a point, in order, with their weights.
    pub fn at(&self, point: Point) -> impl Iterator<Item = (PluginId, i64, &Arc<dyn Plugin>)> {
        let all = self.points.get(&point).map(Vec::as_slice).unwrap_or_default();
        all.iter().filter_map(|(id, weight)| Some((*id, *weight, self.plugins.get(id)?)))
    }

    #[must_use]
    pub fn has(&self, point: Point, plugin: PluginId) -> bool {
        self.points.get(&point).is_some_and(|all| all.iter().any(|(id, _)| *id == plugin))
    }

    #[must_use]
    pub fn scores(&self) -> bool {
        self.points.get(&Point::Score).is_some_and(|all| !all.is_empty())
    }

    #[must_use]
    pub fn plugin(&self, id: PluginId) -> Option<&Arc<dyn Plugin>> {
        self.plugins.get(&id)
    }

    /// The plugins for whose Pods an event may be news.
    #[must_use]
    pub fn concerned(&self, event: &Event) -> PluginSet {
        let mut set = PluginSet::default();
        for (id, plugin) in &self.plugins {
            if plugin.interests().iter().any(|(r, a)| *r == event.resource && a.meets(event.action)) {
                set.insert(*id);
            }
        }
        set
    }
}

impl Default for Profile {
    fn default() -> Self {
        Profile::new(DEFAULT_SCHEDULER, Profile::default_points(), PluginArgs::default(), None)
    }
}

// === impl Profiles ===

impl Profiles {
    #[must_use]
    pub fn get(&self, scheduler: &str) -> Option<&Arc<Profile>> {
        self.0.get(scheduler)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Profile>> {
        self.0.values()
    }
}

impl FromIterator<Profile> for Profiles {
    fn from_iter<I: IntoIterator<Item = Profile>>(all: I) -> Self {
        Profiles(all.into_iter().map(|p| (p.scheduler.clone(), Arc::new(p))).collect())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn listed(config: Value, point: Point) -> Result<Vec<String>, String> {
        let points = points(&serde_json::from_value(config).unwrap())?;
        Ok(points[&point].iter().map(|(id, weight)| format!("{}:{weight}", id.name())).collect())
    }

    #[test]
    fn nothing_said_is_the_default() {
        let mut all = points(&Plugins::default()).unwrap();
        all.retain(|_, plugins| !plugins.is_empty());
        assert_eq!(all, Profile::default_points());
        let scores = listed(json!({}), Point::Score).unwrap();
        assert_eq!(scores[0], "TaintToleration:3");
    }

    #[test]
    fn sets_are_merged_as_upstream_merges_them() {
        let weighted = json!({"score": {"enabled": [{"name": "NodeResourcesFit", "weight": 5}]}});
        assert_eq!(
            listed(weighted, Point::Score).unwrap()[0],
            "NodeResourcesFit:5",
            "first, with its own weight"
        );
        let alone = json!({"score": {"disabled": [{"name": "*"}], "enabled": [{"name": "ImageLocality"}]}});
        assert_eq!(listed(alone, Point::Score).unwrap(), ["ImageLocality:1"]);
        let without = json!({"multiPoint": {"disabled": [{"name": "DefaultPreemption"}]}});
        assert_eq!(listed(without, Point::PostFilter).unwrap(), ["DynamicResources:2"]);
        let again = json!({"multiPoint": {"enabled": [{"name": "TaintToleration", "weight": 9}]}});
        assert_eq!(listed(again, Point::Score).unwrap()[0], "TaintToleration:9", "in its old place");
    }

    #[test]
    fn mistakes_are_named() {
        for (config, expected) in [
            (json!({"filter": {"enabled": [{"name": "Nothing"}]}}), "plugin \"Nothing\" does not exist"),
            (
                json!({"score": {"enabled": [{"name": "NodeName"}]}}),
                "plugin \"NodeName\" does not extend score plugin",
            ),
            (
                json!({"queueSort": {"disabled": [{"name": "*"}]}}),
                "at least one queue sort plugin is required",
            ),
            (json!({"bind": {"disabled": [{"name": "*"}]}}), "at least one bind plugin is needed"),
        ] {
            assert_eq!(listed(config, Point::Filter), Err(expected.to_owned()));
        }
    }
}
