//! Forgetting: old iterations and attempts leave nothing behind, so that a long loop's run does not grow.

use super::{
    field::Field,
    place::{Inside, Place},
    records::StepRecord,
    sight::pages,
    work::{Done, Work},
};

impl Work<'_> {
    /// Deletes everything that is known of the steps of a scope.
    pub(crate) fn forget(&mut self, inside: &Inside) -> Done {
        for place in self.plan.children(inside) {
            let record = self.step(&place)?.clone();
            if record == StepRecord::default() {
                continue;
            }
            match record.each.as_ref().filter(|_| self.plan.is_each(&place)) {
                Some(each) => {
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
                }
                None => self.forget_inner(&place)?,
            }
            self.forget_values(&place)?;
            self.forget_record(&place)?;
        }
        Ok(())
    }

    fn forget_inner(&mut self, holder: &Place) -> Done {
        for inside in self.every_inner(holder)? {
            self.forget(&inside)?;
        }
        Ok(())
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
