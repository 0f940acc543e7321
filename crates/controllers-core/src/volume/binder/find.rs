//! Which volume a claim gets.

use std::sync::Arc;

use api::selector::LabelSelector;

use super::newest::Newest;
use super::terms::{Doc, Offer, Offers};
use crate::object::Object;

/// The volume that was set aside for the claim; else, unless the scheduler is to choose, of those with the fewest access modes
/// the smallest that fits.
pub(super) fn volume(
    newest: Newest<'_>,
    offers: &mut Offers,
    claim: &Doc,
    waits: bool,
) -> Option<Arc<Object>> {
    let request = claim.request();
    let modes = claim.modes();
    let selector = &claim.value["spec"]["selector"];
    let selector = selector.is_object().then(|| LabelSelector::from_object(selector));
    let mut best: Option<(Arc<Object>, Arc<Offer>)> = None;
    for volume in newest.volumes() {
        let offer = offers.of(&volume);
        let is_meant = offer.claim.as_ref().is_some_and(|meant| meant.is(&claim.object));
        if (offer.claim.is_some() && !is_meant)
            || offer.capacity < request
            || offer.is_block != claim.is_block()
            || offer.attributes_class != claim.attributes_class()
            || volume.is_deleting()
            || !offer.has_modes(&modes)
        {
            continue;
        }
        if is_meant {
            return Some(volume);
        }
        let fits = !waits
            && offer.is_available
            && offer.class == claim.class()
            && selector.as_ref().is_none_or(|selector| volume.is_selected(selector));
        let rank = |offer: &Offer| (offer.modes.len(), offer.capacity);
        if fits && best.as_ref().is_none_or(|(_, known)| rank(&offer) < rank(known)) {
            best = Some((volume, offer));
        }
    }
    best.map(|(volume, _)| volume)
}

/// What keeps the volume that a claim names from being its own.
pub(super) fn misfit(volume: &Doc, claim: &Doc) -> Option<String> {
    let offer = Offer::of(volume);
    if volume.object.is_deleting() {
        return Some(format!("the volume is marked for deletion {:?}", volume.object.meta.name));
    }
    let why = if offer.capacity.value() < claim.request().value() {
        "requested PV is too small"
    } else if offer.class != claim.class() {
        "storageClassName does not match"
    } else if offer.attributes_class != claim.attributes_class() {
        "volumeAttributesClassName does not match"
    } else if offer.is_block != claim.is_block() {
        "incompatible volumeMode"
    } else if !offer.has_modes(&claim.modes()) {
        "incompatible accessMode"
    } else {
        return None;
    };
    Some(why.to_owned())
}
