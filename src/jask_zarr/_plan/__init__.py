"""The planner: a jaxpr, chunk grids and a budget in bytes go in, a frozen `Plan` comes out."""

from jask_zarr._plan.choice import make_plan as make_plan
from jask_zarr._plan.plan import CHOOSE as CHOOSE
from jask_zarr._plan.plan import InputSpec as InputSpec
from jask_zarr._plan.plan import OutputSpec as OutputSpec
from jask_zarr._plan.plan import Plan as Plan
