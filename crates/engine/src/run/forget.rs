//! Forgetting: old iterations and attempts leave nothing behind, so that a long loop's run does not grow.

use super::{
    field::Field,
    place::{Inside, Place},
    records::StepRecord,
    sight::pages,
    steps::loops::KEPT,
    work::{Done, Work},
};
use crate::definition::Kind;

impl Work<'_> {
    /// Deletes everything that is known of the steps of a scope.
    pub(crate) fn forget(&mut self, inside: &Inside) -> Done {
        for place in self.plan.children(inside) {
            let record = self.step(&place)?.clone();
            if record == StepRecord::default() {
                continue;
            }
            // Of a for-each that was skipped, no item exists.
            if let Some(each) = &record.each {
                for item in 0..each.issued {
                    self.forget_inner(&place.with(item))?;
                }
                for item in 0..each.total {
                    self.forget_values(&place.with(item))?;
                }
                for page in 0..pages(each.total) {
                    self.delete(Field::Page(place.clone(), page));
                    self.delete(Field::Items(place.clone(), page));
                }
            } else if !self.plan.is_each(&place) {
                self.forget_inner(&place)?;
            }
            self.forget_values(&place)?;
            self.forget_record(&place)?;
        }
        Ok(())
    }

    /// Deletes everything that is known inside a step or item.
    pub(crate) fn forget_inner(&mut self, holder: &Place) -> Done {
        for inside in self.kept_scopes(holder)? {
            self.forget(&inside)?;
        }
        Ok(())
    }

    /// The scopes that a step or item holds or held, as far as they are kept: all that may have to be undone, otherwise
    /// those of the latest attempt, and of a loop the latest iterations.
    pub(crate) fn kept_scopes(&self, holder: &Place) -> Done<Vec<Inside>> {
        let node = self.plan.node(holder.node);
        if node.undoes {
            return self.every_inner(holder);
        }
        let mut found = Vec::new();
        for branch in 0..node.inner.len() as u32 {
            let latest = self.inner(holder, branch)?;
            match (&node.step().kind, latest.at.split_last()) {
                (Kind::Loop(_), Some((&number, around))) => {
                    let kept = (number + 1).saturating_sub(KEPT)..=number;
                    found.extend(kept.map(|n| Inside { scope: latest.scope, at: [around, &[n]].concat() }));
                }
                _ => found.push(latest),
            }
        }
        Ok(found)
    }

    fn forget_values(&mut self, place: &Place) -> Done {
        let at = place.clone();
        for field in [Field::Result(at.clone()), Field::Collected(at.clone()), Field::LoopState(at)] {
            let Some(value) = self.json(&field)? else { continue };
            self.shrink(&value);
            self.delete(field);
        }
        Ok(())
    }
}
