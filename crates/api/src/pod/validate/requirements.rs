//! Requests and limits.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::Scope;
use crate::field::{FieldErrors, Path};
use crate::names;
use crate::pod::resources::{
    aggregate_limits, aggregate_requests, is_huge_pages, is_native, is_overcommit_allowed, is_pod_level,
};
use crate::pod::{Amount, NotAQuantity};

pub(super) fn of_container(
    errors: &mut FieldErrors,
    scope: &Scope<'_>,
    resources: &ResourceRequirements,
    at: &Path,
) {
    requirements(errors, resources, container_name, at);
    claims(errors, scope, resources, &at.child("claims"));
}

pub(super) fn of_pod(errors: &mut FieldErrors, spec: &PodSpec, at: &Path) {
    if let Some(overhead) = &spec.overhead {
        for (name, quantity) in overhead {
            let at = at.child("overhead").child("limits").key(name);
            container_name(errors, name, &at);
            amount(errors, name, quantity, &at);
        }
    }
    for (i, claim) in spec.resource_claims.iter().flatten().enumerate() {
        let at = at.child("resourceClaims").index(i);
        errors.each(&at.child("name"), &claim.name, names::dns_label(&claim.name));
        if claim.resource_claim_name.is_some() == claim.resource_claim_template_name.is_some() {
            let message = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`";
            errors.invalid(&at, claim.name.as_str(), message);
        }
    }
    let Some(resources) = &spec.resources else { return };
    let spec_at = at;
    let at = at.child("resources");
    if resources.claims.is_some() {
        errors.forbidden(&at.child("claims"), "claims may not be set for Resources at pod-level");
    }
    requirements(errors, resources, pod_name, &at);
    consistency(errors, spec, resources, &at, spec_at);
}

fn requirements(
    errors: &mut FieldErrors,
    resources: &ResourceRequirements,
    check_name: fn(&mut FieldErrors, &str, &Path),
    at: &Path,
) {
    let (limits_at, requests_at) = (at.child("limits"), at.child("requests"));
    let limits = resources.limits.clone().unwrap_or_default();
    let requests = resources.requests.clone().unwrap_or_default();
    for (name, quantity) in &limits {
        check_name(errors, name, &limits_at.key(name));
        amount(errors, name, quantity, &limits_at.key(name));
    }
    for (name, quantity) in &requests {
        check_name(errors, name, &requests_at.key(name));
        let Some(request) = amount(errors, name, quantity, &requests_at.key(name)) else { continue };
        match limits.get(name) {
            Some(limit) => {
                let Ok(bound) = Amount::parse(&limit.0) else { continue };
                let word = if is_overcommit_allowed(name) { "less than or equal" } else { "equal" };
                if request > bound || (request < bound && !is_overcommit_allowed(name)) {
                    let message = format!("must be {word} to {name} limit of {}", limit.0);
                    errors.invalid(&requests_at, quantity.0.as_str(), message);
                }
            }
            None if !is_overcommit_allowed(name) => {
                errors.required(&limits_at, "Limit must be set for non overcommitable resources");
            }
            None => {}
        }
    }
    let named = |check: fn(&str) -> bool| limits.keys().chain(requests.keys()).any(|n| check(n));
    if named(is_huge_pages) && !named(|n| n == "cpu" || n == "memory") {
        errors.forbidden(at, "HugePages require cpu or memory");
    }
}

/// Checks one quantity and returns it when it is good.
fn amount(errors: &mut FieldErrors, name: &str, quantity: &Quantity, at: &Path) -> Option<Amount> {
    let text = quantity.0.as_str();
    let Ok(amount) = Amount::parse(text) else {
        errors.invalid(at, text, NotAQuantity.to_string());
        return None;
    };
    if amount.is_negative() {
        errors.invalid(at, text, "must be greater than or equal to 0");
    }
    // Vendors' resources count things.
    if !is_native(name) && !amount.is_whole() {
        errors.invalid(at, text, "must be an integer");
    }
    if let Some(page) = name.strip_prefix("hugepages-").and_then(|p| Amount::parse(p).ok()) {
        let (value, page) = (amount.value(), page.value());
        if page <= 0 || value % page != 0 || (value == 0 && !amount.is_zero()) {
            errors.invalid(at, text, format!("{text} is not positive integer multiple of {name}"));
        }
    }
    Some(amount)
}

fn container_name(errors: &mut FieldErrors, name: &str, at: &Path) {
    let messages = names::qualified_name(name);
    if !messages.is_empty() {
        return errors.each(at, name, messages);
    }
    let standard = matches!(name, "cpu" | "memory" | "ephemeral-storage") || is_huge_pages(name);
    if !name.contains('/') && !standard {
        errors.invalid(at, name, "must be a standard resource type or fully qualified");
        errors.invalid(at, name, "must be a standard resource for containers");
    } else if !is_native(name) && name.starts_with("requests.") {
        errors.invalid(at, name, "doesn't follow extended resource name standard");
    }
}

fn pod_name(errors: &mut FieldErrors, name: &str, at: &Path) {
    let messages = names::qualified_name(name);
    if !messages.is_empty() {
        errors.each(at, name, messages);
    } else if !is_pod_level(name) {
        errors.unsupported(at, name, &["cpu", "hugepages-", "memory"]);
    }
}

/// The Pod as a whole may not have less than its containers together.
fn consistency(
    errors: &mut FieldErrors,
    spec: &PodSpec,
    resources: &ResourceRequirements,
    at: &Path,
    spec_at: &Path,
) {
    let stated = |list: &Option<std::collections::BTreeMap<String, Quantity>>, name: &str| {
        let quantity = list.as_ref()?.get(name)?.0.clone();
        Amount::parse(&quantity).ok().map(|amount| (amount, quantity))
    };
    for (name, total) in aggregate_requests(spec) {
        if let Some((amount, text)) = stated(&resources.requests, &name)
            && total > amount
        {
            let message = format!("must be greater than or equal to aggregate container requests of {total}");
            errors.invalid(&at.child("requests").key(&name), text, message);
        }
    }
    for (name, total) in aggregate_limits(spec).into_iter().filter(|(n, _)| is_huge_pages(n)) {
        if let Some((amount, text)) = stated(&resources.limits, &name)
            && total > amount
        {
            let message = format!("must be greater than or equal to aggregate container limits of {total}");
            errors.invalid(&at.child("limits").key(&name), text, message);
        }
    }
    for (i, c) in spec.containers.iter().enumerate() {
        for (name, limit) in c.resources.iter().filter_map(|r| r.limits.as_ref()).flatten() {
            if let (Some((pod, text)), Ok(mine)) = (stated(&resources.limits, name), Amount::parse(&limit.0))
                && mine > pod
            {
                let at = spec_at.child("containers").index(i).child("resources").child("limits");
                let message = format!("must be less than or equal to pod limits of {text}");
                errors.invalid(&at.key(name), limit.0.as_str(), message);
            }
        }
    }
}

fn claims(errors: &mut FieldErrors, scope: &Scope<'_>, resources: &ResourceRequirements, at: &Path) {
    let mut seen = BTreeSet::new();
    for (i, claim) in resources.claims.iter().flatten().enumerate() {
        let at = at.index(i);
        if claim.name.is_empty() {
            errors.required(&at, "");
            continue;
        }
        if !seen.insert((claim.name.as_str(), claim.request.as_deref())) {
            errors.duplicate(&at, claim.name.as_str());
        }
        if !scope.claims.contains(claim.name.as_str()) {
            errors.not_found(&at, claim.name.as_str());
        }
    }
}
