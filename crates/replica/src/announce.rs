//! Announces to the cluster that this replica is alive, where its admin port is, and what its loops do.

use std::sync::Arc;

use muster_store::Replica;
use serde_json::Value;

use crate::Member;

impl Member {
    /// Announces this replica until its last task has ended, and then withdraws the announcement. `settings` gives the
    /// settings in effect, with secrets masked.
    pub fn announce(&self, settings: impl Fn() -> Vec<Value> + Send + Sync + 'static) {
        let (chassis, store) = (&self.chassis, self.flow.store.clone());
        let reach = chassis.reach();
        let about = Replica {
            service: chassis.service.to_owned(),
            instance: chassis.instance.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            admin: reach.now(),
            started_at: store.now(),
            seen_at: store.now(),
            loops: Vec::new(),
            deciding: Vec::new(),
            settings: Vec::new(),
        };
        let (loops, stop, settings) = (chassis.loops.clone(), chassis.tasks.stopping(), Arc::new(settings));
        chassis.tasks.supervise("announce", move || {
            let (store, about, reach) = (store.clone(), about.clone(), reach.clone());
            let (loops, stop, settings) = (loops.clone(), stop.clone(), settings.clone());
            async move {
                let now = |about: &mut Replica| {
                    about.admin = reach.now();
                    about.loops = loops.show_each();
                    about.settings = settings();
                };
                store.announce(about, now, stop.cancelled()).await;
                Ok(())
            }
        });
    }
}
