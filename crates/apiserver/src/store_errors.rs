//! Errors of the store as the status of an answer. The log says everything; a client need not know where things lie here.

use store::{Fault, ReadError, WatchError, WriteError};

use apiserver_core::api_status::ApiStatus;

/// Seconds after which a client may try again what a store that fails refused.
const RETRY_AFTER: i32 = 5;

pub(crate) fn of_read(error: &ReadError) -> ApiStatus {
    tracing::error!(%error, "the store failed a read");
    match error {
        ReadError::Fault(fault) => of_fault(fault),
        ReadError::Compacted(_) | ReadError::Ahead { .. } => ApiStatus::internal(error.to_string()),
    }
}

/// A write that failed for another reason than the object's state.
pub(crate) fn of_write(error: &WriteError) -> ApiStatus {
    if let WriteError::TooLarge { bytes, limit } = error {
        // The first words are those of upstream's store, which clients know.
        let told =
            format!("etcdserver: request is too large: the object has {bytes} bytes, the limit is {limit}");
        return ApiStatus::too_large(told);
    }
    tracing::error!(%error, "the store failed a write");
    match error {
        WriteError::Fault(fault) => of_fault(fault),
        WriteError::Conflict { .. } | WriteError::TooLarge { .. } => ApiStatus::internal(error.to_string()),
    }
}

pub(crate) fn of_watch(error: &WatchError) -> ApiStatus {
    tracing::error!(%error, "the store failed a watch");
    match error {
        WatchError::Fault(fault) => of_fault(fault),
        WatchError::Compacted(_) => ApiStatus::internal(error.to_string()),
    }
}

fn of_fault(fault: &Fault) -> ApiStatus {
    let text = fault.without_paths();
    if !fault.may_pass() {
        return ApiStatus::internal(text);
    }
    let mut api_status = ApiStatus::unavailable(text);
    api_status.details.get_or_insert_default().retry_after_seconds = RETRY_AFTER;
    api_status
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use store::Corruption;

    use super::*;

    #[test]
    fn no_client_is_told_where_things_lie_on_this_machine() {
        let path = PathBuf::from("/var/lib/secret-place/store.db");
        let torn = || {
            Fault::from(Corruption { path: path.clone(), row: Some(7), what: format!("{path:?} is torn") })
        };
        let faults = [
            torn(),
            Fault::Stopped { cause: Arc::new(torn()) },
            Fault::Io {
                act: "writing",
                cause: Arc::new(std::io::Error::other(format!("{path:?} went away"))),
            },
            Fault::Full { act: "writing" },
            Fault::Closed,
        ];
        for fault in faults {
            let statuses = [
                of_write(&fault.clone().into()),
                of_read(&fault.clone().into()),
                of_watch(&fault.clone().into()),
            ];
            for api_status in statuses {
                let told = api_status.to_status().to_string();
                assert!(!told.contains("secret-place"), "{told}");
                assert!(api_status.code >= 500, "{told}");
            }
        }
        let told = of_write(&torn().into()).message;
        assert_eq!(told, "Internal error occurred: the store is corrupt at revision 7");
        let full = of_write(&Fault::Full { act: "writing" }.into());
        assert_eq!((full.code, full.message.contains("the disk is full")), (503, true));
    }
}
