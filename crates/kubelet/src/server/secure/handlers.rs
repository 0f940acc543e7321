//! Which endpoints port 10250 has, by what the configuration switches on.

use axum::Router;
use axum::routing::{get, post};

use super::state::ServerState;
use super::{container_logs, pages, run, stream, system_logs};
use crate::server::readonly::{debug_router, disabled, metered, open_router};

/// Every endpoint of 10250.
pub fn router(state: ServerState) -> Router {
    let (views, switches) = (state.views.clone(), state.switches);
    let router = open_router(views.clone());
    let router = match switches.debugging {
        true => router.merge(debugging(state)),
        false => disabled(router, &DEBUGGING, "Debug endpoints are disabled.\n"),
    };
    metered(router, views, "readwrite")
}

const DEBUGGING: [&str; 8] =
    ["run", "exec", "attach", "portForward", "containerLogs", "runningpods", "logs", "debug/pprof"];

fn debugging(state: ServerState) -> Router {
    let switches = state.switches;
    let mut router = Router::new()
        .route("/containerLogs/{namespace}/{pod}/{container}", get(container_logs::serve))
        .route("/run/{namespace}/{pod}/{container}", post(run::run))
        .route("/run/{namespace}/{pod}/{uid}/{container}", post(run::run))
        .route("/exec/{namespace}/{pod}/{container}", get(stream::exec).post(stream::exec))
        .route("/exec/{namespace}/{pod}/{uid}/{container}", get(stream::exec).post(stream::exec))
        .route("/attach/{namespace}/{pod}/{container}", get(stream::attach).post(stream::attach))
        .route("/attach/{namespace}/{pod}/{uid}/{container}", get(stream::attach).post(stream::attach))
        .route("/portForward/{namespace}/{pod}", get(stream::port_forward).post(stream::port_forward))
        .route("/portForward/{namespace}/{pod}/{uid}", get(stream::port_forward).post(stream::port_forward));
    if switches.flagz {
        router = router.route("/flagz", get(pages::flagz));
    }
    if switches.statusz {
        router = router.route("/statusz", get(pages::statusz));
    }
    if switches.checkpoint {
        router = router.route("/checkpoint/{namespace}/{pod}/{container}", post(run::checkpoint));
    }
    if switches.system_logs {
        router = router
            .route("/logs", get(system_logs::serve))
            .route("/logs/", get(system_logs::serve))
            .route("/logs/{*path}", get(system_logs::serve));
    } else {
        router = disabled(router, &["logs"], "logs endpoint is disabled.\n");
    }
    router = match switches.profiling {
        true => router
            .route("/debug/pprof", get(pages::profiles))
            .route("/debug/pprof/", get(pages::profiles))
            .route("/debug/pprof/{profile}", get(pages::profile).post(pages::profile)),
        false => disabled(router, &["debug/pprof"], "profiling endpoint is disabled.\n"),
    };
    router = match switches.debug_flags {
        true => {
            let flag = axum::routing::put(pages::verbosity).fallback(pages::verbosity_is_put);
            router.route("/debug/flags/v", flag)
        }
        false => disabled(router, &["debug/flags/v"], "flags endpoint is disabled.\n"),
    };
    let views = state.views.clone();
    router.with_state(state).merge(debug_router(views))
}
