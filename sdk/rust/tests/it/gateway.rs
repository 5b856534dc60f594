//! A fake gateway that gives the answers of a test, and remembers the requests.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Bytes,
    http::{HeaderMap, Method, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use serde_json::Value;
use tokio::{net::TcpListener, task::JoinSet};

pub(super) struct Asked {
    pub(super) method: Method,
    pub(super) uri: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Asked {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

#[derive(Clone, Default)]
struct Shared {
    asked: Arc<Mutex<Vec<Asked>>>,
    answers: Arc<Mutex<VecDeque<Response>>>,
}

pub(super) struct Gateway {
    pub(super) url: String,
    shared: Shared,
    _server: JoinSet<()>,
}

impl Gateway {
    pub(super) async fn start() -> Gateway {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Shared::default();
        let own = shared.clone();
        let app = Router::new().fallback(move |method: Method, uri: Uri, headers: HeaderMap, body: Bytes| {
            let shared = own.clone();
            async move {
                let uri = uri.to_string();
                shared.asked.lock().unwrap().push(Asked { method, uri, headers, body });
                let answer = shared.answers.lock().unwrap().pop_front();
                answer.unwrap_or_else(|| StatusCode::IM_A_TEAPOT.into_response())
            }
        });
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, app).await.unwrap() });
        Gateway { url, shared, _server: server }
    }

    /// Adds an answer after those added before.
    pub(super) fn then(&self, status: u16, headers: &[(&str, &str)], body: &str) -> &Gateway {
        let mut response = body.to_owned().into_response();
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        for (name, value) in headers {
            let name = axum::http::HeaderName::try_from(*name).unwrap();
            response.headers_mut().insert(name, value.parse().unwrap());
        }
        self.shared.answers.lock().unwrap().push_back(response);
        self
    }

    pub(super) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.shared.asked.lock().unwrap())
    }
}
