//! What all stories need.

/// Plays a story under paused time.
pub(crate) fn play<T>(story: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(story)
}
