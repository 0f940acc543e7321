//! How many volumes a driver can have on this node may change while it runs: its CSIDriver says how often to ask.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::time::Mono;
use futures_util::future::join_all;
use k8s_openapi::api::storage::v1::CSIDriver;
use kubelet_core::volumes::CsiVolume;
use kubelet_core::volumes::csi::attachment_name;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::CsiVolumes;

/// How often it is looked whether somebody is to be asked: no CSIDriver may ask for more. Nobody may take longer.
const LOOK: Duration = Duration::from_secs(10);

impl CsiVolumes {
    /// Asks drivers anew as often as they want, until cancelled.
    pub(in crate::volumes) async fn refresh_until(self: Arc<Self>, token: CancellationToken) {
        let mut drivers = self.deps.registrar.drivers.subscribe();
        let mut asked = BTreeMap::new();
        let rounds = async {
            loop {
                let names: Vec<String> = drivers.borrow_and_update().keys().cloned().collect();
                self.refresh_due(&names, &mut asked).await;
                let pause = tokio::time::sleep(LOOK);
                tokio::select! {
                    // A node without drivers has nothing to look at.
                    () = pause, if !names.is_empty() => {}
                    changed = drivers.changed() => if changed.is_err() { return },
                }
            }
        };
        token.run_until_cancelled(rounds).await;
    }

    /// Those whose time has come since they were asked, or came.
    async fn refresh_due(&self, names: &[String], asked: &mut BTreeMap<String, Mono>) {
        asked.retain(|name, _| names.contains(name));
        let now = self.deps.measured.clock.now().mono;
        let mut due = Vec::new();
        for name in names {
            let object = self.deps.storage.driver(name).await.ok().flatten();
            let Some(period) = period(object.as_deref()) else {
                asked.remove(name);
                continue;
            };
            let since = asked.entry(name.clone()).or_insert(now);
            if now.since(*since) >= period {
                *since = now;
                due.push(name.as_str());
            }
        }
        join_all(due.into_iter().map(|name| self.refresh(name))).await;
    }

    async fn refresh(&self, driver: &str) {
        let asked = tokio::time::timeout(LOOK, self.deps.registrar.refresh(driver)).await;
        if let Err(error) = asked.unwrap_or_else(|_| Err(format!("no answer within {}s", LOOK.as_secs()))) {
            tracing::warn!(driver, error, "driver not asked anew how many volumes it can have");
        }
    }

    /// A volume was not attached. Whether that was for want of room, as drivers say whose CSIDriver asks for it; others
    /// learn then that there is none.
    pub(super) async fn is_exhausted(&self, volume: &CsiVolume, object: Option<&CSIDriver>) -> bool {
        if period(object).is_none() {
            return false;
        }
        let id = attachment_name(&volume.handle, &volume.driver, self.deps.storage.node_name());
        let Ok(attachment) = self.deps.storage.attachment(&id).await else { return false };
        let code = attachment.status.and_then(|s| s.attach_error?.error_code);
        let exhausted = code == Some(Code::ResourceExhausted as i32);
        if exhausted {
            self.refresh(&volume.driver).await;
        }
        exhausted
    }
}

/// None if the driver need not be asked again.
fn period(object: Option<&CSIDriver>) -> Option<Duration> {
    let seconds = object?.spec.node_allocatable_update_period_seconds?;
    u64::try_from(seconds).ok().filter(|s| *s > 0).map(Duration::from_secs)
}
