//! `/scale`: the same three numbers of whatever can be scaled.

use api::field::FieldErrors;
use schema::decode;
use schema::types::At;
use serde_json::Value;

use super::patch::Patch;
use super::{Outcome, Registry, Written};
use apiserver_core::api_status::ApiStatus;
use apiserver_core::call::Call;
use apiserver_core::kind::ScalePaths;
use apiserver_core::kinds::scale;
use apiserver_core::meta;
use apiserver_core::selection::present;

impl Registry {
    pub async fn get_scale(&self, call: &Call) -> Result<Value, ApiStatus> {
        let document = self.get(&call.kind, call.namespace(), call.name()).await?;
        Ok(scale::read(&present(&call.kind, &document), &paths(call)?))
    }

    pub async fn update_scale(&self, call: &mut Call, wanted: &Value) -> Result<Written, ApiStatus> {
        self.write_scale(call, &mut |_| Ok(wanted.clone())).await
    }

    pub async fn patch_scale(&self, call: &mut Call, patch: &Patch) -> Result<Written, ApiStatus> {
        let at = scale_type();
        self.write_scale(call, &mut |current| {
            let mut wanted = current.clone();
            patch.apply_at(at, &mut wanted)?;
            Ok(wanted)
        })
        .await
    }

    async fn write_scale(
        &self,
        call: &mut Call,
        make: &mut (dyn FnMut(&Value) -> Result<Value, ApiStatus> + Send),
    ) -> Result<Written, ApiStatus> {
        let paths = paths(call)?;
        let name = call.name().to_owned();
        let written = self
            .modify(call, &mut |call, old| {
                let current = scale::read(old, &paths);
                let mut wanted = make(&current)?;
                decode::conform(&mut wanted, scale_type())
                    .map_err(|e| ApiStatus::bad_request(e.to_string()))?;
                let said = meta::name(&wanted);
                if !said.is_empty() && said != name {
                    return Err(ApiStatus::bad_request(format!(
                        "the name of the object ({said}) does not match the name on the URL ({name})"
                    )));
                }
                let mut errors = FieldErrors::default();
                scale::validate(&wanted, &mut errors);
                if !errors.is_empty() {
                    return Err(ApiStatus::invalid(&call.kind, &name, &errors));
                }
                let mut new = old.clone();
                let based_on = wanted["metadata"]["resourceVersion"].clone();
                meta::set_or_remove(
                    meta::metadata_mut(&mut new),
                    "resourceVersion",
                    based_on.is_string().then_some(based_on),
                );
                scale::write(&mut new, &wanted, &paths);
                Ok(new)
            })
            .await?;
        Ok(Written::elsewhere(scale::read(&written.object, &paths), Outcome::Updated))
    }
}

fn paths(call: &Call) -> Result<ScalePaths, ApiStatus> {
    call.kind.strategy.scale().ok_or_else(ApiStatus::no_resource)
}

fn scale_type() -> At<'static> {
    At::kind("autoscaling", "v1", "Scale").unwrap_or(At::UNKNOWN)
}
