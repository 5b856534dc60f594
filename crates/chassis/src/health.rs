//! Whether this replica may be given work, and which part is not ready.
//!
//! A service names the parts; each part is ready, or not ready with a detail. `/livez` is 200 while
//! the process runs. `/readyz` answers 503 and names the part, unless the service chose to stay up
//! degraded, as a gateway does when a store is away. Other modules find out whether a part is
//! ready, and set it here.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{
    Json, Router,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::{Value, json};

/// All parts of a process. Clones share the same parts.
#[derive(Clone, Default)]
pub struct Health {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    parts: Mutex<BTreeMap<&'static str, Known>>,
    may_degrade: AtomicBool,
    stopping: AtomicBool,
}

struct Known {
    ready: bool,
    detail: String,
    required: bool,
}

/// One part. The module that knows its state sets it.
#[derive(Clone)]
pub struct Part {
    name: &'static str,
    health: Health,
}

/// The readiness of the whole process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Every part is ready.
    Ready,
    /// A part is not ready, but the replica still takes requests: 200.
    Degraded,
    /// The replica must not be given work: 503.
    Unready,
}

impl Health {
    /// A process without parts, which is ready.
    pub fn new() -> Health {
        Health::default()
    }

    /// From now on an unready part gives 200 `degraded`, unless the part is required.
    pub fn stay_up_degraded(&self) {
        self.inner.may_degrade.store(true, Ordering::Relaxed);
    }

    /// Adds a part, which is not ready until it is set.
    pub fn part(&self, name: &'static str) -> Part {
        self.add(name, false)
    }

    /// Adds a part without which the process is unready, even if the process may degrade.
    pub fn required(&self, name: &'static str) -> Part {
        self.add(name, true)
    }

    fn add(&self, name: &'static str, required: bool) -> Part {
        let known = Known { ready: false, detail: "starting".to_owned(), required };
        self.parts().insert(name, known);
        Part { name, health: self.clone() }
    }

    /// Marks the process as stopping: unready, so that load balancers stop sending requests.
    pub(crate) fn stopping(&self) {
        self.inner.stopping.store(true, Ordering::Relaxed);
    }

    /// The readiness of the whole process.
    pub fn readiness(&self) -> Readiness {
        let parts = self.parts();
        let unready = |required: bool| parts.values().any(|part| !part.ready && part.required >= required);
        let may_degrade = self.inner.may_degrade.load(Ordering::Relaxed);
        match () {
            () if self.inner.stopping.load(Ordering::Relaxed) => Readiness::Unready,
            () if !unready(false) => Readiness::Ready,
            () if may_degrade && !unready(true) => Readiness::Degraded,
            () => Readiness::Unready,
        }
    }

    /// The answer of `/readyz`.
    pub fn show(&self) -> (StatusCode, Value) {
        let readiness = self.readiness();
        let (code, status) = match readiness {
            Readiness::Ready => (StatusCode::OK, "ready"),
            Readiness::Degraded => (StatusCode::OK, "degraded"),
            Readiness::Unready => (StatusCode::SERVICE_UNAVAILABLE, "unready"),
        };
        let mut parts = serde_json::Map::new();
        for (name, part) in self.parts().iter() {
            parts.insert((*name).to_owned(), json!({"ready": part.ready, "detail": part.detail}));
        }
        if self.inner.stopping.load(Ordering::Relaxed) {
            parts.insert("process".to_owned(), json!({"ready": false, "detail": "stopping"}));
        }
        (code, json!({"status": status, "parts": parts}))
    }

    /// `/livez` and `/readyz`, for any port that should have them.
    pub fn routes(&self) -> Router {
        let health = self.clone();
        Router::new()
            .route("/livez", get(|| async { Json(json!({"status": "alive"})) }))
            .route("/readyz", get(move || async move { answer(&health) }))
    }

    fn parts(&self) -> MutexGuard<'_, BTreeMap<&'static str, Known>> {
        self.inner.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn answer(health: &Health) -> Response {
    let (code, body) = health.show();
    (code, Json(body)).into_response()
}

impl Part {
    /// Sets this part to ready.
    pub fn ready(&self) {
        self.tell(true, String::new());
    }

    /// Sets this part to not ready, with the reason.
    pub fn not_ready(&self, detail: impl Into<String>) {
        self.tell(false, detail.into());
    }

    fn tell(&self, ready: bool, detail: String) {
        let mut parts = self.health.parts();
        let Some(part) = parts.get_mut(self.name) else { return };
        if part.ready != ready {
            match ready {
                true => tracing::info!(event = "part_ready", part = self.name, "ready"),
                false => tracing::warn!(event = "part_unready", part = self.name, detail, "not ready"),
            }
        }
        part.ready = ready;
        part.detail = detail;
    }
}
