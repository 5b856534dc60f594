//! Runs the tasks that `flow` describes as supervised tasks of this process.

use muster_chassis::Tasks;
use muster_flow::admission::Task;

/// Supervises each task in `tasks` until the tasks stop.
pub fn supervise(tasks: &Tasks, work: Vec<Task>) {
    for mut task in work {
        let stop = tasks.stopping();
        tasks.supervise(task.name, move || {
            let run = task.run(stop.clone());
            async move {
                run.await;
                Ok(())
            }
        });
    }
}
